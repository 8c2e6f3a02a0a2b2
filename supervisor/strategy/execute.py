"""Step 5: execute position changes. Burns come first: they free the capital that mints need."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from supervisor.strategy.model import Change, Kind


def plan(held: Mapping[str, float], target: Mapping[str, float], capital: float) -> list[Change]:
    """The changes from weights `held` to weights `target`, in the order that never needs spare capital."""
    changes = []
    for pool in sorted({*held, *target}):
        before, after = held.get(pool, 0.0) * capital, target.get(pool, 0.0) * capital
        if before == after:
            continue
        kind = Kind.BURN if after == 0 else Kind.MINT if before == 0 else Kind.REBALANCE
        changes.append(Change(kind, pool, before, after))
    return sorted(changes, key=lambda change: (change.after - change.before, change.pool))


def execute(
    changes: list[Change], positions: dict[str, float], capital: float, may_act: Callable[[], None]
) -> None:
    """Apply the changes to the paper positions (pool -> weight), asking before each whether we still may."""
    for change in changes:
        may_act()
        if change.kind is Kind.BURN:
            del positions[change.pool]
        else:
            positions[change.pool] = change.after / capital
