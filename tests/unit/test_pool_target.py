"""The adaptive target: a pure function of recent demand."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from muster import blueprint, keys, steps
from muster.errors import Refused
from muster.pool_target import Window, parse_windows, pool_target
from muster.store import Store
from muster.warm_pool import set_target, target_of
from tests.worlds import world

NOW = 10_000_000
MINUTE = 60_000
MEMORY = blueprint.POOL_DEMAND_MEMORY // timedelta(milliseconds=1)
PER_REFILL = blueprint.POOL_DEMAND_MEMORY / blueprint.POOL_REFILL


def steady(per_refill: int) -> list[int]:
    claims = round(per_refill * PER_REFILL)
    return [NOW - n * MEMORY // claims for n in range(claims)]


def target(demand: list[int], floor: int = 2, cap: int = 50) -> int:
    return pool_target(demand, NOW, floor=floor, cap=cap)


def test_without_demand_the_floor_is_kept() -> None:
    assert target([]) == 2


@pytest.mark.parametrize(("per_refill", "wanted"), [(1, 4), (3, 8), (9, 17), (25, 37)])
def test_steady_demand_is_met_in_all_but_one_of_a_hundred_refill_times(per_refill: int, wanted: int) -> None:
    """Poisson's quantiles at 0.99, as any table has them."""
    assert target(steady(per_refill)) == wanted


def test_a_rush_is_forgotten_once_it_is_over() -> None:
    rush = [NOW - MEMORY - n for n in range(1, 400)]
    assert target(rush) == 2
    assert target([at + 2 * MINUTE for at in rush], cap=500) > 50


def test_the_budget_caps_demand_and_calendar() -> None:
    assert target(steady(90)) == 50
    always = Window.parse("mon-sun 00:00-24:00 80")
    assert pool_target([], NOW, floor=2, cap=50, windows=[always]) == 50


def test_a_very_busy_pool_is_reckoned_too() -> None:
    assert 5_000 < target(steady(5_000), cap=10_000) < 5_300


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def test_a_window_holds_its_days_and_hours_in_its_own_zone_through_the_change_of_clocks() -> None:
    (opens,) = parse_windows("mon-fri 09:10-09:45 America/New_York 180;")
    assert opens.size == 180
    assert opens.covers(at("2026-07-01T13:10:00+00:00"))  # daylight saving time
    assert opens.covers(at("2026-12-01T14:44:59+00:00"))
    assert not opens.covers(at("2026-12-01T13:10:00+00:00"))
    assert not opens.covers(at("2026-12-01T14:45:00+00:00"))
    assert not opens.covers(at("2026-12-05T14:30:00+00:00"))  # a Saturday
    assert pool_target([], at("2026-12-01T14:30:00+00:00"), floor=2, cap=500, windows=[opens]) == 180


@pytest.mark.parametrize(
    "text",
    ["", "9-17 5", "mon-fri 09:10-09:45", "fri-mon 09:00-10:00 5", "mon 10:00-09:00 5", "xyz 09:00-10:00 5",
     "mon 09:00-10:00 Mars/Olympus 5", "mon 09:00-25:00 5"],
)  # fmt: skip
def test_a_window_that_means_nothing_is_refused_with_an_example_or_a_name(text: str) -> None:
    with pytest.raises(Refused, match=r"mon-fri 09:10|Europe/Dublin"):
        Window.parse(text)


@pytest.mark.parametrize("adaptive", [True, False])
def test_an_operators_target_wins_over_demand(any_store: Store, adaptive: bool) -> None:
    w = world(any_store)
    for n in range(60):
        any_store.one(steps.reserve_slot("default", f"c{n}", "v1"))
    assert target_of(w.deps, 3, adaptive=adaptive) == (17 if adaptive else 3)  # 60 in 20 minutes, 9 a refill
    set_target(w.deps, 9)
    assert target_of(w.deps, 3, adaptive=adaptive) == 9


def test_demand_is_remembered_whether_it_was_served_or_not(any_store: Store) -> None:
    w = world(any_store)
    any_store.one(steps.reserve_slot("default", "missed", "v1"))
    w.add_idle("w1")
    any_store.one(steps.reserve_slot("default", "served", "v1"))
    assert any_store.client.zcard(keys.pool_demand("default")) == 2
