"""`make bench-check` fails for every reason it should, and only for those."""

from __future__ import annotations

import tomllib

import pytest

from bench.run import BENCHES, HERE, Answer, failings, page

FLOORS = {"start": {"warm": 8.0, "cold": 1.0}}
GOOD = Answer("start", 3.0, {"warm": 9.1, "cold": 1.0, "other": 0.1}, {"warm p50, ms": 8.4})


def test_what_reaches_its_floors_passes() -> None:
    assert failings([GOOD], FLOORS) == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Answer("start", 3.0, {"warm": 7.9, "cold": 1.0}), "warm is 7.9"),
        (Answer("start", 3.0, {"warm": 9.0}), "cold was not measured"),
        (Answer("start", 3.0, GOOD.ratios, lost=1), "1 lost"),
        (Answer("start", 3.0, GOOD.ratios, doubled=2), "2 doubled"),
        (Answer("start", 3.0, trouble="exit 1, no answer"), "exit 1"),
    ],
)
def test_what_does_not_is_named(answer: Answer, reason: str) -> None:
    (said,) = failings([answer], FLOORS)
    assert reason in said


def test_the_page_shows_ratios_with_their_floors_and_figures() -> None:
    text = page([GOOD, Answer("jobs", 1.0, trouble="took over 240 s")], FLOORS)
    assert "| warm | 9.1 | 8 |" in text
    assert "| warm p50, ms | 8.4 |" in text
    assert "No answer: took over 240 s." in text


def test_every_floor_is_of_a_bench_that_is_there() -> None:
    floors = tomllib.loads((HERE / "floors.toml").read_text())
    assert floors.keys() <= set(BENCHES)
    assert all((HERE / f"{name}.py").exists() for name in floors)
    assert all(floor > 0 for ratios in floors.values() for floor in ratios.values())
