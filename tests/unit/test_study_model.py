"""The fast model on days small enough to reckon by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sim.study import figures as f
from sim.study.day import DAY, Day, day_of, expected_arrivals
from sim.study.model import call_waits, run, start_latency
from sim.study.policies import adaptive, calendar, fixed


def day(arrivals: dict[int, int], users: int = 1000) -> Day:
    """Nobody leaves and nothing breaks."""
    came = np.zeros(DAY)
    for second, count in arrivals.items():
        came[second] = count
    return Day(users, came, np.zeros(DAY), np.zeros(DAY), np.cumsum(came))


def test_a_burst_beyond_the_bucket_waits_its_turn_in_seconds() -> None:
    course = run([day({10: 180})], [fixed(0)(day({}))]).column(0)
    # 100 tokens at once, then 40 a second.
    assert list(course.launched_cold[10:14]) == [100, 40, 40, 0]
    waits = call_waits(course)
    assert np.unique(waits, return_counts=True)[1].tolist() == [100, 40, 40]
    assert start_latency(0, waits, 1.0) == pytest.approx(2 + f.COLD_READY.value)


def test_idle_workers_take_starts_and_are_replaced_after_a_boot_from_what_the_bucket_leaves() -> None:
    one = day({10: 5})
    course = run([one], [fixed(5)(one)]).column(0)
    assert (course.warm.sum(), course.cold.sum()) == (5, 0)
    assert course.calls[10] == 5
    assert list(course.pool[9:13]) == [5, 5, 5, 5]
    assert start_latency(5, call_waits(course), 0.99) == f.WARM_READY.value


def test_calls_never_exceed_the_bucket_and_starts_go_before_refills() -> None:
    one = day(dict.fromkeys(range(100, 200), 60))
    course = run([one], [fixed(500)(one)]).column(0)
    for width in (1, 10, 100):
        most = f.MUTATE_BURST.value + f.MUTATE_RATE.value * width
        assert np.convolve(course.calls, np.ones(width), "valid").max() <= most
    assert course.warm.sum() + course.cold.sum() == 6000
    assert course.launched_cold.sum() == course.cold.sum(), "a start was lost"
    starved = slice(150, 200)
    assert course.cold[starved].sum() > 0
    assert (course.calls[starved] == course.launched_cold[starved]).all()


def test_a_surplus_is_stopped_through_the_same_bucket() -> None:
    target = np.full(DAY, 500.0)
    target[1000:] = 0.0
    course = run([day({})], [target]).column(0)
    assert course.pool[999] == 500
    assert course.pool[1000] == 0
    assert course.calls[1000:].sum() == 500
    assert course.calls[1000] == 100
    assert course.stop_backlog[1000] == 400


def test_a_day_is_a_ring_in_which_everybody_who_comes_leaves() -> None:
    made = day_of(20_000, np.random.default_rng(1))
    assert made.arrivals.sum() == made.stops.sum()
    assert made.running.min() >= 0
    assert abs(made.arrivals.sum() - 20_000) < 5 * 20_000**0.5
    opens = int(f.OPEN_AT.value)
    assert expected_arrivals(1.0)[opens:].sum() > f.OPEN_SHARE.value
    assert made.arrivals[opens : opens + 60].sum() > 10 * made.arrivals[opens - 60 : opens].sum()


def test_the_calendar_raises_the_pool_before_the_open_and_only_around_it() -> None:
    made = day_of(100_000, np.random.default_rng(1))
    opens, quiet = int(f.OPEN_AT.value), adaptive(made)
    planned = calendar(made)
    assert planned[opens] > 50 * quiet[opens]
    assert (planned[:20_000] == quiet[:20_000]).all()
    assert (planned[opens + 1800 :] == quiet[opens + 1800 :]).all()
    assert calendar(made, expects=0.8)[opens] < planned[opens]
