"""The simulator: one seed is one history, and a thousand of them keep every promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any
from unittest.mock import patch

import pytest

from sim.install import installed
from sim.plan import make_plan
from sim.run import run_many, run_plan, run_seeds, shrink
from sim.store_world import FakeRedisBackend
from sim.world import World


def _cli(*arguments: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", "from cli.sim import app; app()", *arguments]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=100, env=os.environ | {"PYTHONHASHSEED": hash_seed}
    )


@pytest.mark.timeout(600)
def test_a_thousand_seeds_keep_every_promise() -> None:
    report = run_many(0, 1000, processes=os.cpu_count() or 1)
    assert report.violations == []
    assert report.seeds == 1000
    assert report.worst_overlap_durable_s == 0.0
    assert report.steps > 1_000_000
    assert len(report.faults) > 30, "most kinds of faults should have struck"


def test_the_same_seed_is_the_same_history_in_one_process_and_in_two() -> None:
    here = [outcome.trace_hash for outcome in run_seeds(range(40, 46))]
    assert here == [outcome.trace_hash for outcome in run_seeds(range(40, 46))]
    assert len(set(here)) == len(here)
    asked = ("--from", "40", "--seeds", "6", "--processes", "1", "--json")
    answers = [json.loads(_cli(*asked, hash_seed=seed).stdout) for seed in ("1", "2")]
    assert answers[0] == answers[1]
    assert answers[0]["trace_hash"] == run_many(40, 6, processes=1).trace_hash


@pytest.mark.parametrize(
    ("seed", "losses"),
    [
        (0, []),
        (5, []),
        (12, []),
        (23, ["store failover lost 10.000 s"]),
        (45, ["store failover lost 0.050 s", "store failover lost 0.050 s"]),
        (132, ["store wiped"]),
    ],
)
def test_the_fast_store_gives_the_same_history_as_fakeredis(seed: int, losses: list[str]) -> None:
    plan = make_plan(seed)
    with installed():
        fast, fast_lines = run_plan(plan, keep_trace=True)
        slow, slow_lines = _on_fakeredis(plan)
    signs = ("store failover lost", "store wiped")
    told = [line.split(" ", 1)[1] for line in fast_lines]
    assert [line for line in told if line.startswith(signs)] == losses, "choose another seed"
    assert slow_lines == fast_lines
    assert slow.trace_hash == fast.trace_hash


def _on_fakeredis(plan: Any) -> tuple[Any, list[str]]:
    worlds: list[World] = []

    def backend(publish: Any) -> FakeRedisBackend:
        return FakeRedisBackend(publish)

    real_init = World.__init__

    def remember(self: World, *arguments: Any, **more: Any) -> None:
        worlds.append(self)
        real_init(self, *arguments, **more)

    real_time = time.time
    with (
        patch.object(World, "__init__", remember),
        patch(
            "time.time",
            lambda: worlds[-1].loop.now if worlds and hasattr(worlds[-1], "loop") else real_time(),
        ),
    ):
        return run_plan(plan, keep_trace=True, backend=backend)


def test_a_broken_promise_is_reported_with_its_seed_and_a_smaller_plan() -> None:
    from sim.mutants import MUTANTS

    mutant = next(m for m in MUTANTS if m.name == "take the mark while another holds it")
    with mutant.alive():
        broken = next(
            o for chunk in range(0, 200, 10) for o in run_seeds(range(chunk, chunk + 10)) if o.violation
        )
        plan = make_plan(broken.seed)
        smaller = shrink(plan, broken.violation)
        with installed():
            assert run_plan(smaller)[0].violation == broken.violation
    assert len(smaller.wishes) + len(smaller.faults) < len(plan.wishes) + len(plan.faults)


def test_the_command_prints_one_object_and_says_by_its_exit_code_whether_all_is_well() -> None:
    done = _cli("--from", "3", "--seeds", "5", "--processes", "1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["first_seed"], report["seeds"], report["violations"]) == (3, 5, [])
    assert report["steps"] > 1000
    assert len(report["trace_hash"]) == 32
    traced = _cli("--seed", "3", "--trace")
    assert traced.returncode == 0
    assert "person start" in traced.stdout
    assert _cli("--trace").returncode == 2
