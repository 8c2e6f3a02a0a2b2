"""Two minutes of chaos on real processes: nobody acts twice, nothing that was accepted is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from local.chaos import USERS, Chaos
from local.chaos_faults import Deck, Kind
from local.chaos_report import Fault, Report, plot
from worker.journal import Overlap, overlaps


@pytest.mark.timeout(600)
def test_two_minutes_of_chaos_break_no_promise(tmp_path: Path) -> None:
    lines: list[str] = []
    report = Chaos(tmp_path, seed=20, seconds=120, say=lines.append).run()
    story = "\n".join(lines)
    assert report.broken == [], story
    assert report.left_out == [], f"every kind of fault strikes at least once\n{story}"
    assert report.struck["kill aws endpoint"] >= 1, story
    assert report.commands > USERS, story
    assert report.summary()["double_workers"] == 0
    assert report.orders_agreed >= report.orders > 30, story
    plot(report, tmp_path / "chaos.svg")
    assert "<svg" in (tmp_path / "chaos.svg").read_text(encoding="utf-8")


def test_each_kind_of_fault_comes_once_before_any_comes_twice() -> None:
    kinds = [Kind(name, weight, str) for weight, name in enumerate("abcdefgh", 1)]
    deck = Deck(kinds, random.Random(1))
    first = [deck.draw() for _ in kinds[1:]]
    deck.missed(first[0])
    first.append(deck.draw())
    assert sorted(kind.name for kind in first) == list("abcdefgh")
    assert deck.draw() is first[0], "one that found nothing to hit comes again"
    assert [kind.name for kind in first] != list("abcdefgh"), "in the seed's order"
    assert {deck.draw().name for _ in range(200)} == set("abcdefgh")


def test_a_report_says_which_kinds_never_struck() -> None:
    report = Report(1, kinds=["kill api", "kill worker"], faults=[Fault(1.0, "kill worker")])
    assert report.left_out == report.summary()["faults_left_out"] == ["kill api"]
    assert report.summary()["faults"] == {"kill api": 0, "kill worker": 1}


def test_the_auditor_sees_two_workers_that_act_in_turns(tmp_path: Path) -> None:
    (tmp_path / "fine.log").write_text("1.0 10 1\n2.0 10 1\n2.5 11 2\n3.0 11 2\n", encoding="utf-8")
    (tmp_path / "twice.log").write_text("1.0 10 1\n2.0 11 2\n3.0 10 1\n4.0 11 2\n", encoding="utf-8")
    assert overlaps(tmp_path) == [Overlap("twice", 1.0, 3.0)]


def test_a_report_with_a_double_worker_a_lost_command_or_a_wrong_order_is_broken() -> None:
    assert Report(1).broken == []
    assert Report(1, double_workers=1).broken
    assert Report(1, lost_commands=["u1"]).broken
    assert Report(1, overlaps_after_loss=[10.5]).broken
    assert Report(1, overlaps_after_loss=[9.5]).broken == []
    assert Report(1, double_sessions=1).broken
    assert Report(1, orders_executed_twice=1).broken
    assert Report(1, orders_wrong=["o1: recorded as filled 1, in the book filled 2"]).broken
    assert Report(1, shared_after_loss=[19.5]).broken
    assert Report(1, shared_after_loss=[18.5], orders_sent_twice=1).broken == []
