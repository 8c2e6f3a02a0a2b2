"""How large the warm pool should be: the size that would have served a chosen share of recent demand.

Demand is counted in windows of one refill time: what is claimed while the pool cannot grow must already be
there. The target is the quantile of those counts at the wanted hit rate, at least the floor, at most the cap.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta

from muster import blueprint


def adaptive_target(
    demand_ms: Sequence[int],
    now_ms: int,
    *,
    floor: int,
    cap: int,
    refill: timedelta = blueprint.POOL_REFILL,
    hit_rate: float = blueprint.POOL_HIT_RATE,
    memory: timedelta = blueprint.POOL_DEMAND_MEMORY,
) -> int:
    """The target for the times (ms) at which a warm worker was asked for. Idle windows count too."""
    window_ms = refill / timedelta(milliseconds=1)
    windows = math.floor(memory / refill)
    counts = Counter(math.floor((now_ms - at) / window_ms) for at in demand_ms if at <= now_ms)
    sizes = sorted(counts.get(window, 0) for window in range(windows))
    needed = sizes[min(windows - 1, math.ceil(hit_rate * windows) - 1)]
    return max(floor, min(cap, needed))
