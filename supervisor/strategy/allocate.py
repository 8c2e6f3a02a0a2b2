"""Step 4: decide the allocation. Pure: the same analysis and positions give the same decision."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.strategy.model import Analysis, Params, Regime

#: The share of the capital that may be in pools at all.
EXPOSURE = {Regime.CALM: 1.0, Regime.NORMAL: 0.7, Regime.WILD: 0.0}


def allocate(analysis: Analysis, held: Mapping[str, float], params: Params) -> dict[str, float]:
    """The weight (share of the capital) each pool should have; the rest stays in cash.

    Pools worth having share the exposure by their net APR, none above `max_weight`. A pool whose weight
    would move by less than `min_move` keeps the one it has: small moves cost more than they bring.
    """
    worth = {s.pool: s.net_apr for s in analysis.scores if s.net_apr > 0 and s.net_apr >= params.min_apr}
    target = _share(worth, EXPOSURE[analysis.regime], params.max_weight)
    kept = {
        pool: weight
        for pool, weight in held.items()
        if pool in target and abs(target[pool] - weight) < params.min_move and weight <= params.max_weight
    }
    settled = {**target, **kept}
    # What was kept may exceed the exposure by a little; then the plain target is the safe answer.
    return settled if sum(settled.values()) <= EXPOSURE[analysis.regime] + 1e-9 else target


def _share(worth: Mapping[str, float], exposure: float, cap: float) -> dict[str, float]:
    """Split `exposure` in proportion to worth, none above `cap`; what that leaves goes to the others."""
    weights: dict[str, float] = {}
    open_pools, left = dict(worth), exposure
    while open_pools and left > 1e-12:
        total = sum(open_pools.values())
        capped = [pool for pool, value in open_pools.items() if left * value / total >= cap]
        if not capped:
            weights.update({pool: left * value / total for pool, value in open_pools.items()})
            break
        for pool in capped:
            weights[pool] = min(cap, left)
            left -= weights[pool]
            del open_pools[pool]
    return {pool: weight for pool, weight in weights.items() if weight > 0}
