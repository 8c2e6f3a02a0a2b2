"""The call budget: a user's start before a repair, a repair before a refill."""

from __future__ import annotations

import pytest

from muster.blueprint import ECS_MUTATE
from muster.budget import CallBudget, Priority
from muster.errors import TryLater
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
