"""The call budget: a user's start before a repair, a repair before a refill."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from bench.fleet import FakeEcs
from muster.blueprint import ECS_MUTATE, LIST_PATIENCE
from muster.budget import CallBudget, Priority
from muster.errors import TryLater
from muster.launchers import ecs
from muster.launchers.ecs import EcsLauncher
from tests.worlds import CountingStore, virtual_world


def draw_all(budget: CallBudget) -> int:
    drawn = 0
    try:
        while True:
            budget(ECS_MUTATE, 1)
            drawn += 1
    except TryLater:
        return drawn


def test_each_leaves_a_share_for_those_who_matter_more(monkeypatch: pytest.MonkeyPatch) -> None:
    w, clock = virtual_world(monkeypatch)
    refill, repair = (CallBudget(w.store, p) for p in (Priority.REFILL, Priority.REPAIR))
    assert draw_all(refill) == 40
    assert draw_all(repair) == 30
    assert draw_all(refill) == 0
    clock.advance(1)  # 40 calls come back in a second
    assert draw_all(refill) == 10
    clock.advance(60)
    assert draw_all(repair) == 70  # never more than the burst


def test_the_refusal_says_when_it_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    w, _ = virtual_world(monkeypatch)
    refill = CallBudget(w.store, Priority.REFILL)
    draw_all(refill)
    with pytest.raises(TryLater, match="free in 250 ms"):
        refill(ECS_MUTATE, 10)


def test_a_start_never_asks_and_costs_no_round_trip(monkeypatch: pytest.MonkeyPatch) -> None:
    w, _ = virtual_world(monkeypatch)
    store = CountingStore(w.store.client)
    for _ in range(1000):
        CallBudget(store, Priority.START)(ECS_MUTATE, 1)
    assert store.round_trips == 0


def test_a_listing_waits_for_its_share_and_gives_up_when_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the wait a cell of more than 7,000 tasks would never be listed whole, and no orphan found."""
    w, clock = virtual_world(monkeypatch)
    budget, tasks = CallBudget(w.store, Priority.REPAIR), 15_000

    def listed(wait: Callable[[float], None] | None) -> int:
        client = FakeEcs(tasks)
        return len(
            list(EcsLauncher(client, "cluster", "worker:1", "workers", "worker", budget, wait).tasks())
        )

    with pytest.raises(TryLater):
        listed(None)
    began = clock.now()
    assert listed(clock.advance) > tasks * 0.99
    assert 0 < clock.now() - began < LIST_PATIENCE.total_seconds()
    monkeypatch.setattr(ecs, "LIST_PATIENCE", timedelta(seconds=1))
    with pytest.raises(TryLater):
        listed(clock.advance)
