"""Step 7: publish the state others may see. What the strategy remembers for itself is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from supervisor.strategy.model import Analysis, Change, Params
from worker.cycle import Context


def publish(
    ctx: Context, analysis: Analysis, weights: Mapping[str, float], changes: list[Change], params: Params
) -> dict[str, Any]:
    """Publish now, and return the same as the cycle's result."""
    result = {
        "epoch": ctx.cycle,
        "price": analysis.price,
        "regime": analysis.regime.value,
        "forces": analysis.forces,
        "decision": dict(weights),
        "changes": [asdict(change) for change in changes],
        "params": asdict(params),
        "aprs": {score.pool: score.net_apr for score in analysis.scores},
    }
    ctx.publish(**result)
    return result
