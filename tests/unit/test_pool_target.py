"""The adaptive target: a pure function of recent demand."""

from __future__ import annotations

from datetime import timedelta

import pytest

from muster import blueprint, keys, steps
from muster.pool_target import adaptive_target
from muster.store import Store
from muster.warm_pool import set_target, target_of
from tests.worlds import world

NOW = 10_000_000
WINDOW_MS = round(blueprint.POOL_REFILL / timedelta(milliseconds=1))
WINDOWS = blueprint.POOL_DEMAND_MEMORY // blueprint.POOL_REFILL


def target(demand: list[int], floor: int = 2, cap: int = 50) -> int:
    return adaptive_target(demand, NOW, floor=floor, cap=cap)


def test_without_demand_the_floor_is_kept() -> None:
    assert target([]) == 2


def test_steady_demand_is_met_within_one_refill() -> None:
    assert target([NOW - window * WINDOW_MS - n for window in range(WINDOWS) for n in range(7)]) == 7


def test_one_spike_in_the_hour_is_within_the_share_that_may_miss() -> None:
    assert target([NOW - 5 * WINDOW_MS - n for n in range(40)]) == 2


def test_two_spikes_are_not() -> None:
    assert target([NOW - window * WINDOW_MS - n for window in (2, 9) for n in range(40)]) == 40


def test_the_budget_caps_it() -> None:
    assert target([NOW - w * WINDOW_MS - n for w in range(WINDOWS) for n in range(90)], cap=50) == 50


@pytest.mark.parametrize("adaptive", [True, False])
def test_an_operators_target_wins_over_demand(any_store: Store, adaptive: bool) -> None:
    w = world(any_store)
    for n in range(60):
        any_store.one(steps.reserve_slot("default", f"c{n}", "v1"))
    assert target_of(w.deps, 3, adaptive=adaptive) == 3  # one window of twenty: within the share
    set_target(w.deps, 9)
    assert target_of(w.deps, 3, adaptive=adaptive) == 9


def test_demand_is_remembered_whether_it_was_served_or_not(any_store: Store) -> None:
    w = world(any_store)
    any_store.one(steps.reserve_slot("default", "missed", "v1"))
    w.add_idle("w1")
    any_store.one(steps.reserve_slot("default", "served", "v1"))
    assert any_store.client.zcard(keys.pool_demand("default")) == 2
