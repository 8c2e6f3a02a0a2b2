"""Replays: the arithmetic of one, and what the adaptive policy promises over a month it has not seen."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from muster.errors import Refused
from muster.pool_replay import (
    SYNTHETIC_WINDOW,
    Replay,
    adaptive,
    fixed,
    read_trace,
    replay,
    synthetic_month,
)
from muster.pool_target import parse_windows

HOUR = 3_600_000


def test_a_pool_of_one_serves_every_claim_that_leaves_it_time_to_refill() -> None:
    spread = replay("fixed 1", [n * HOUR for n in range(24)], fixed(1))
    assert (spread.claims, spread.hits) == (24, 24)
    assert spread.worker_hours == pytest.approx(23 + 5 / 60)
    at_once = replay("fixed 1", [1000] * 10, fixed(1))
    assert at_once.hits == 1
    assert (at_once.start_s(0.05), at_once.start_s(0.5)) == (0.332, 3.103)


def test_without_a_pool_every_start_is_cold_and_costs_nothing() -> None:
    none = replay("fixed 0", [n * HOUR for n in range(24)], fixed(0))
    assert (none.hits, none.worker_hours) == (0, 0)


def test_a_slower_refill_serves_fewer() -> None:
    claims = [n * 60_000 for n in range(600)]
    quick, slow = (replay("", claims, fixed(2), timedelta(seconds=s)) for s in (5, 600))
    assert quick.hits > slow.hits


@pytest.fixture(scope="module")
def sizes() -> dict[int, list[Replay]]:
    """Fixed sizes from nothing to more than ever come at once, on three months."""
    tried = [*range(13), 16, 20, 30, 50, 80, 120, 160, 200, 240]
    return {
        seed: [replay(f"fixed {n}", synthetic_month(seed), fixed(n)) for n in tried] for seed in (1, 2, 3)
    }


@pytest.mark.parametrize("calendar", [SYNTHETIC_WINDOW, ""], ids=["calendar", "demand alone"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_adaptive_policy_beats_every_fixed_size_of_equal_cost_and_of_equal_hit_rate(
    seed: int, calendar: str, sizes: dict[int, list[Replay]]
) -> None:
    mine = replay("adaptive", synthetic_month(seed), adaptive(1, 300, parse_windows(calendar)))
    of_equal_cost = [size for size in sizes[seed] if size.worker_hours <= mine.worker_hours]
    of_equal_hits = [size for size in sizes[seed] if size.hit_rate >= mine.hit_rate]
    assert of_equal_cost
    assert of_equal_hits
    assert all(size.hit_rate < mine.hit_rate for size in of_equal_cost)
    assert all(size.worker_hours > mine.worker_hours for size in of_equal_hits)
    if calendar:
        assert mine.hit_rate > 0.93
        assert min(size.worker_hours for size in of_equal_hits) > 10 * mine.worker_hours


def test_a_trace_is_read_in_any_order_and_in_the_forms_that_tools_write(tmp_path: Path) -> None:
    trace = tmp_path / "claims.csv"
    trace.write_text("at,user\n2026-11-02 13:30:01.500,u2\n1793626200,u1\n2026-11-02T14:30:02+01:00,u3\n")
    assert read_trace(trace) == [1_793_626_200_000, 1_793_626_201_500, 1_793_626_202_000]


@pytest.mark.parametrize("text", ["when,user\n1,u1\n", "at,user\nnoon,u1\n", "at,user\n,u1\n"])
def test_a_line_that_is_no_time_is_refused_by_its_number(tmp_path: Path, text: str) -> None:
    trace = tmp_path / "claims.csv"
    trace.write_text(text)
    with pytest.raises(Refused, match="line 2"):
        read_trace(trace)
    with pytest.raises(Refused, match="columns at,user"):
        read_trace(tmp_path / "none.csv")
