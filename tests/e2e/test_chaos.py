"""Two minutes of chaos on real processes: nobody acts twice, nothing that was accepted is lost."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from local.chaos import USERS, Chaos
from local.chaos_faults import Deck, Kind
from local.chaos_load import Witness, measure_heals, served
from local.chaos_report import Fault, Report, Sample, plot
from worker.journal import Overlap, acting, overlaps


@pytest.mark.timeout(600)
def test_two_minutes_of_chaos_break_no_promise(tmp_path: Path) -> None:
    lines: list[str] = []
    report = Chaos(tmp_path, seed=20, seconds=120, say=lines.append).run()
    story = "\n".join(lines)
    assert report.broken == [], story
    assert report.left_out == [], f"every kind of fault strikes at least once\n{story}"
    assert report.struck["kill aws endpoint"] >= 1, story
    assert report.commands > USERS, story
    summary = report.summary()
    assert summary["double_workers"] == 0
    hits = summary["faults_felt"]["kill worker"] + summary["faults_felt"]["freeze worker"]
    assert hits > 0, f"the witnesses see nothing\n{summary}\n{story}"
    assert summary["faults_felt"]["kill engine"] > 0, f"the API was away for it\n{summary}\n{story}"
    assert 0 < summary["heal_p50_s"] <= summary["heal_max_s"], f"{summary}\n{story}"
    assert 0.5 < summary["load_held"] < 1, f"{summary}\n{story}"
    assert summary["api_answered"] < 1, f"{summary}\n{story}"
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


def samples(troubled: dict[float, str], silent: Sequence[float] = (), until: int = 20) -> list[Sample]:
    """One a second; `u1` and `u2` are wanted, and those in trouble are not served."""
    return [
        Sample(
            float(at),
            2,
            2 - len(troubled.get(at, "").split()),
            at not in silent,
            frozenset(troubled.get(at, "").split()),
        )
        for at in range(until)
    ]


def test_heals_are_of_felt_faults_only_and_their_number_is_told() -> None:
    faults = [
        Fault(2.5, "kill worker", "u1", 2.6),
        *(Fault(12.5, "drop streams", "", 12.6) for _ in range(9)),
    ]
    report = Report(1, faults=faults, samples=samples({3.0: "u1", 4.0: "u1"}))
    measure_heals(report.faults, report.samples, Witness())
    summary = report.summary()
    assert (summary["heals"], summary["faults_felt"]) == (1, {"drop streams": 0, "kill worker": 1})
    assert summary["heal_p50_s"] == summary["heal_p95_s"] == summary["heal_max_s"] == 2.5
    assert Report(1, faults=faults[1:]).summary()["heal_p50_s"] is None


def test_a_fault_is_felt_during_a_long_strike_and_shortly_after_it() -> None:
    faults = [Fault(1.5, "full disk", "for 4 s", 8.0), Fault(1.5, "drop streams", "", 1.6)]
    measure_heals(faults, samples({10.0: "u2"}), Witness())
    assert [fault.healed_s for fault in faults] == [9.5, None]


def test_an_api_that_is_silent_is_felt_until_it_answers_and_every_user_is_well() -> None:
    fault = Fault(2.5, "kill api", "pid 1", 2.6)
    seen = samples({6.0: "u1"}, silent=(4, 5))
    measure_heals([fault], seen, Witness())
    assert fault.healed_s == 4.5
    assert Report(1, samples=seen).summary()["api_answered"] == 0.9


def test_what_a_user_misses_by_its_own_command_or_since_before_is_no_faults_doing() -> None:
    fault, hit = Fault(2.5, "drop streams", "", 2.6), Fault(2.5, "freeze worker", "u1 for 5 s", 2.6)
    witness = Witness(commands=[(2.0, 2.1, "u1")])
    measure_heals([fault], samples({2.0: "u2", 3.0: "u1 u2"}), witness)
    measure_heals([hit], samples({2.0: "u1", 3.0: "u1"}), witness)
    assert (fault.healed_s, hit.healed_s) == (None, 1.5), "but the one that was hit is the fault's"


def test_the_load_is_what_the_journals_and_the_broker_show_whether_the_api_answers_or_not() -> None:
    witness = Witness(
        wishes=[(-1.0, "u1", True), (-1.0, "u2", True), (-1.0, "u3", None), (2.0, "u2", False)],
        answers=[(0.0, True), (0.5, False), (1.5, True)],
    )
    acts = {"u1": [(0.0, 4.0)], "u2": [(0.0, 0.95), (1.45, 2.55)]}
    connections = {"u1": [(-1.0, 3.5), (3.75, 9.0)], "u2": [(-1.0, 9.0)]}
    seen = witness.samples(served(acts, connections, broker_killed=[3.05]), until=4.0)
    assert len(seen) == 40
    assert [one.at for one in seen if not one.api] == [round(0.5 + n / 10, 2) for n in range(10)]
    assert [one.at for one in seen if one.held < one.wanted] == [
        *(1.0, 1.1, 1.2, 1.3, 1.4),  # the worker of u2 was silent
        *(round(3.1 + n / 10, 2) for n in range(7)),  # until the broker that was killed had u1 back
    ]
    assert [one.at for one in seen if "u2" in one.troubled and one.wanted == 1] == [
        2.0,
        2.1,
        2.2,
        2.3,
        2.4,
        2.5,
    ]


def test_acts_of_one_worker_are_joined_over_short_silences_and_never_with_anothers(tmp_path: Path) -> None:
    lines = "1.0 10 1\n1.5 10 1\n4.0 10 1\n4.5 10 1\n4.6 11 2\n5.0 11 2\n"
    (tmp_path / "u1.log").write_text(lines, encoding="utf-8")
    assert acting(tmp_path, 1.0) == {"u1": [(1.0, 1.7), (4.0, 4.7), (4.6, 5.2)]}
