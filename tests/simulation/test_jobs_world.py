"""The job world: one seed is one history of a job pool, and hundreds of them keep every promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from sim.jobs import run as jobs_world
from sim.jobs.install import installed
from sim.jobs.mutants import MUTANTS
from sim.jobs.plan import JobPlan, Plan, Wish, make_plan
from sim.jobs.run import run_plan, run_seeds
from sim.plan import Fault
from sim.run import run_many, shrink
from sim.store_world import FakeRedisBackend
from worker import jobs as job_worker
from worker import jobs_child


def _cli(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", "from cli.sim import app; app()", "--world", "jobs", *arguments]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=100, env=os.environ | {"PYTHONHASHSEED": hash_seed}
    )


def _plan(*happenings: Wish | Fault, **more: object) -> Plan:
    """A history made by hand."""
    wishes = tuple(what for what in happenings if isinstance(what, Wish))
    faults = tuple(what for what in happenings if isinstance(what, Fault))
    usual = {"lossy": False, "max_workers": 1, "batch": 1, "max_jobs": None, "restarts": False}
    return Plan(
        **{"seed": 1, **usual, "check_every": 300.0, "duration": 60.0, **more}, wishes=wishes, faults=faults
    )  # type: ignore[arg-type]


@pytest.mark.timeout(300)
def test_seven_hundred_seeds_keep_every_promise() -> None:
    report = run_many(0, 700, processes=os.cpu_count() or 1, seeds_of=run_seeds)
    assert report.violations == []
    assert report.seeds == 700
    assert report.steps > 300_000
    assert len(report.faults) > 35, "most kinds of faults should have struck"


def test_the_same_seed_is_the_same_history_in_one_process_and_in_two() -> None:
    here = [outcome.trace_hash for outcome in run_seeds(range(40, 50))]
    assert here == [outcome.trace_hash for outcome in run_seeds(range(40, 50))]
    assert len(set(here)) == len(here)
    asked = ("--from", "40", "--seeds", "10", "--processes", "1", "--json")
    answers = [json.loads(_cli(*asked, hash_seed=seed).stdout) for seed in ("1", "2")]
    assert answers[0] == answers[1]
    assert answers[0]["trace_hash"] == run_many(40, 10, processes=1, seeds_of=run_seeds).trace_hash


@pytest.mark.parametrize(
    ("seed", "loses"), [(0, False), (1, False), (2, False), (50, False), (69, True), (94, True)]
)
def test_the_fast_store_gives_the_same_history_as_fakeredis(seed: int, loses: bool) -> None:
    plan = make_plan(seed)
    with installed():
        fast, fast_lines = run_plan(plan, keep_trace=True)
        slow, slow_lines = run_plan(plan, keep_trace=True, backend=FakeRedisBackend(lambda *_: None))
    assert any("store failover lost" in line for line in fast_lines) is loses
    assert slow_lines == fast_lines
    assert slow.trace_hash == fast.trace_hash


def test_a_history_runs_the_real_worker_from_push_to_exit() -> None:
    with installed():
        outcome, lines = run_plan(_plan(Wish(0.0, "push", (JobPlan(1.0), JobPlan(0.2)))), keep_trace=True)
    assert not outcome.violation
    told = "\n".join(lines)
    for word in ("boot", "store register", "store beat", "store turn", "store extend", "exit p-"):
        assert word in told, word
    assert job_worker.time.__name__ == jobs_child.time.__name__ == "time", "the real clock is back"


def test_a_late_result_is_ignored_and_the_job_is_done_by_the_worker_that_took_over() -> None:
    with installed():
        outcome, lines = run_plan(
            _plan(
                Wish(0.0, "push", (JobPlan(14.0),)),
                Fault(4.0, "freeze", "parent", 25.0),
                Wish(15.5, "check"),
            ),
            keep_trace=True,
        )
    assert not outcome.violation, outcome.what
    results = [line.split("[", 1)[1] for line in lines if "step turn" in line and "[[" in line]
    handed_in = [answer[:2] for answer in results if answer[:2] in ("[0", "[1")]
    assert handed_in == ["[0", "[1"]


def test_a_broken_promise_is_reported_with_its_seed_and_a_smaller_plan() -> None:
    mutant = next(m for m in MUTANTS if m.name == "heartbeats do not extend claims")
    with mutant.alive():
        broken = next(o for at in range(0, 100, 5) for o in run_seeds(range(at, at + 5)) if o.violation)
        plan = make_plan(broken.seed)
        smaller = shrink(plan, broken.violation, jobs_world)
        with installed():
            assert run_plan(smaller)[0].violation == broken.violation
    assert len(smaller.wishes) + len(smaller.faults) < len(plan.wishes) + len(plan.faults)


def test_the_command_prints_one_object_and_says_by_its_exit_code_whether_all_is_well() -> None:
    done = _cli("--from", "3", "--seeds", "5", "--processes", "1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["first_seed"], report["seeds"], report["violations"]) == (3, 5, [])
    assert "worst_overlap_durable_s" not in report
    traced = _cli("--seed", "3", "--trace")
    assert traced.returncode == 0
    assert " push " in traced.stdout
