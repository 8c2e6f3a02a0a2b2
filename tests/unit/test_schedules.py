"""Beats and one-shots by a clock that moves only when told; calls run where the test says."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime, timedelta

import pytest

from local.schedules import Call, Schedules
from muster.clock import FakeClock

MINUTE = timedelta(minutes=1)


class Later:
    """Holds calls back until the test runs them: a function that is slow, without a thread."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def __call__(self, call: Call) -> None:
        self.calls.append(call)

    def finish(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


def in_place(call: Call) -> None:
    call()


def advance(clock: FakeClock, schedules: Schedules, seconds: float) -> None:
    clock.advance(seconds)
    schedules.run_due()


def test_a_function_runs_once_per_period_and_not_before() -> None:
    clock, runs = FakeClock(), []
    schedules = Schedules(clock, spawn=in_place)
    schedules.every(MINUTE, "sweep", lambda: runs.append(clock.now()))
    start = clock.now()
    for _ in range(180):
        advance(clock, schedules, 1)
    assert [at - start for at in runs] == [60, 120, 180]


def test_speed_ten_makes_beats_ten_times_faster() -> None:
    clock, runs = FakeClock(), []
    schedules = Schedules(clock, speed=10, spawn=in_place)
    schedules.every(MINUTE, "sweep", lambda: runs.append(1))
    for _ in range(60):
        advance(clock, schedules, 1)
    assert len(runs) == 10


def test_a_slow_function_skips_beats_and_never_overlaps_itself(caplog: pytest.LogCaptureFixture) -> None:
    clock, runs, slow = FakeClock(), [], Later()
    schedules = Schedules(clock, spawn=slow)
    schedules.every(MINUTE, "sweep", lambda: runs.append(clock.now()))
    for _ in range(5):
        advance(clock, schedules, 60)
    assert len(slow.calls) == 1
    assert "sweep is still running" in caplog.text
    slow.finish()
    assert len(runs) == 1
    advance(clock, schedules, 59)
    assert slow.calls == []
    advance(clock, schedules, 1)
    assert len(slow.calls) == 1


def test_a_long_pause_is_one_beat_not_many_and_keeps_the_rhythm() -> None:
    clock, runs = FakeClock(), []
    schedules = Schedules(clock, spawn=in_place)
    schedules.every(MINUTE, "sweep", lambda: runs.append(1))
    advance(clock, schedules, 3600 + 30)
    schedules.run_due()
    assert len(runs) == 1
    advance(clock, schedules, 30)
    assert len(runs) == 2


def test_a_slow_function_does_not_hold_up_another() -> None:
    clock, slow = FakeClock(), Later()
    schedules = Schedules(clock, spawn=slow)
    schedules.every(MINUTE, "sweep", lambda: None)
    schedules.every(2 * MINUTE, "pool", lambda: None)
    advance(clock, schedules, 60)
    advance(clock, schedules, 60)
    assert len(slow.calls) == 2


def test_an_error_is_logged_and_the_next_beat_comes(caplog: pytest.LogCaptureFixture) -> None:
    clock, runs = FakeClock(), []

    def fail() -> None:
        runs.append(1)
        raise RuntimeError("the store is away")

    schedules = Schedules(clock, spawn=in_place)
    schedules.every(MINUTE, "sweep", fail)
    advance(clock, schedules, 60)
    advance(clock, schedules, 60)
    assert len(runs) == 2
    assert [r.levelno for r in caplog.records] == [logging.ERROR, logging.ERROR]
    assert "the store is away" in caplog.text


def test_a_poke_runs_at_once_and_leaves_the_beats_where_they_were() -> None:
    clock, runs = FakeClock(), []
    schedules = Schedules(clock, spawn=in_place)
    schedules.every(MINUTE, "pool", lambda: runs.append(1))
    advance(clock, schedules, 30)
    schedules.poke("pool")
    assert len(runs) == 1
    advance(clock, schedules, 30)
    assert len(runs) == 2


def test_pokes_during_a_run_give_exactly_one_more_run() -> None:
    clock, runs = FakeClock(), []
    schedules = Schedules(clock, spawn=in_place)

    def call() -> None:
        runs.append(1)
        if len(runs) == 1:
            schedules.poke("pool")
            schedules.poke("pool")

    schedules.every(MINUTE, "pool", call)
    schedules.poke("pool")
    assert len(runs) == 2


def test_one_shots_run_once_in_the_order_of_their_time_and_are_not_sped_up() -> None:
    clock, runs = FakeClock(), []
    schedules = Schedules(clock, speed=10, spawn=in_place)
    now = datetime.fromtimestamp(clock.now(), UTC)
    schedules.at(now + timedelta(seconds=20), lambda: runs.append("later"))
    schedules.at(now + timedelta(seconds=10), lambda: runs.append("sooner"))
    schedules.at(now - timedelta(seconds=10), lambda: runs.append("passed"))
    schedules.run_due()
    assert runs == ["passed"]
    advance(clock, schedules, 9)
    assert runs == ["passed"]
    advance(clock, schedules, 30)
    advance(clock, schedules, 30)
    assert runs == ["passed", "sooner", "later"]


def test_a_name_can_be_planned_once_only() -> None:
    schedules = Schedules(FakeClock())
    schedules.every(MINUTE, "sweep", lambda: None)
    with pytest.raises(ValueError, match="already"):
        schedules.every(MINUTE, "sweep", lambda: None)


def test_speed_must_be_positive() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Schedules(FakeClock(), speed=0)


def test_after_a_stop_nothing_new_begins() -> None:
    clock, runs = FakeClock(), []
    schedules = Schedules(clock, spawn=in_place)
    schedules.every(MINUTE, "sweep", lambda: runs.append(1))
    assert schedules.stop(0)
    advance(clock, schedules, 60)
    schedules.poke("sweep")
    assert runs == []


def test_the_thread_keeps_time_and_sees_what_is_planned_while_it_waits() -> None:
    schedules = Schedules(speed=1000).start()
    one_shot, beat = threading.Event(), threading.Event()
    schedules.at(datetime.now(UTC), one_shot.set)
    assert one_shot.wait(10)
    schedules.every(timedelta(seconds=10), "sweep", beat.set)
    assert beat.wait(10)
    assert schedules.stop(10)


def test_a_stop_waits_for_what_runs_and_says_when_it_did_not_end() -> None:
    schedules = Schedules().start()
    began, end = threading.Event(), threading.Event()

    def call() -> None:
        began.set()
        end.wait(10)

    schedules.every(MINUTE, "sweep", call)
    schedules.poke("sweep")
    assert began.wait(10)
    assert not schedules.stop(0.01)
    end.set()
    assert schedules.stop(10)
