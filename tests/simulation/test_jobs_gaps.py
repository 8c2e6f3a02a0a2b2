"""The worst times of a job pool: the table of jobs in `docs/explanation/guarantees.md`, in the simulator's
units (a heartbeat of 5 s instead of 30 s, an idle grace of 5 s instead of 30 s, the same slow schedule)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.jobs.model import HEARTBEAT, IDLE_EXIT, SAFETY_CHECK, STALE_AFTER
from sim.jobs.install import installed
from sim.jobs.plan import HEARTBEAT_S, IDLE_EXIT_S, STALE_S, JobPlan, Plan, Wish
from sim.jobs.processes import DRIFT
from sim.jobs.run import run_plan
from sim.plan import Fault

GUARANTEES = Path(__file__).parents[2] / "docs" / "explanation" / "guarantees.md"

CHECK_S = SAFETY_CHECK.total_seconds()
#: From a launch to the boot of its worker, and the round trips around it.
LAUNCH_S = 3.0
#: A process looks around this often, and a message may take over a second.
LOOK_S = 2.0


def _lines(*happenings: Wish | Fault, max_workers: int = 1) -> list[tuple[float, str]]:
    """A history made by hand, which every promise has watched: when, what."""
    wishes = tuple(what for what in happenings if isinstance(what, Wish))
    faults = tuple(what for what in happenings if isinstance(what, Fault))
    plan = Plan(1, False, max_workers, 1, None, False, CHECK_S, 320.0, wishes, faults)
    with installed():
        outcome, lines = run_plan(plan, keep_trace=True)
    assert not outcome.violation, outcome.what
    return [(float(at), what) for at, what in (line.split(" ", 1) for line in lines)]


def _times(lines: list[tuple[float, str]], sign: str) -> Iterator[float]:
    return (at for at, what in lines if what.startswith(sign))


def test_a_dead_workers_job_has_a_worker_again_after_two_heartbeats_and_a_check() -> None:
    """Nobody pushes meanwhile, so only the slow schedule looks: worst where it has just looked."""
    worst = 0.0
    for killed in (2.0, 100.0, 250.0, 285.0, 291.0, 297.0):
        push = Wish(max(0.0, killed - 8.0), "push", (JobPlan(25.0),))
        lines = _lines(push, Fault(killed, "kill", "worker"))
        died = next(_times(lines, "fault"))
        worst = max(worst, next(at for at in _times(lines, "boot") if at > died) - died)
    assert 0.9 * (STALE_S + CHECK_S) < worst < STALE_S + CHECK_S + LAUNCH_S


def test_a_dead_workers_job_has_a_worker_again_at_the_first_push_after_two_heartbeats() -> None:
    push = Wish(0.0, "push", (JobPlan(25.0),))
    lines = _lines(push, Fault(5.0, "kill", "worker"), Wish(5.0 + STALE_S, "push", (JobPlan(1.0),)))
    died = next(_times(lines, "fault"))
    assert next(at for at in _times(lines, "boot") if at > died) - died < STALE_S + LAUNCH_S


@pytest.mark.parametrize("kind", ["freeze", "cut_off"])
def test_a_worker_above_the_maximum_leaves_with_its_next_heartbeat(kind: str) -> None:
    """It was away for so long that it was declared lost, and its successor has its place."""
    for away in (12.0, 14.0, 16.0, 18.0, 25.0):
        lines = _lines(
            Wish(0.0, "push", (JobPlan(28.0),)),
            Fault(4.0, kind, "worker", away),
            Wish(4.0 + STALE_S + 1.0, "check"),
        )
        began = next(_times(lines, "fault"))
        first, *_ = (what.split()[1] for _, what in lines if what.startswith("boot"))
        boots = list(_times(lines, "boot"))
        assert began + STALE_S < boots[1], "its successor came because it was lost"
        left = next(_times(lines, f"exit {first}"))
        assert left - (began + away) < HEARTBEAT_S + LOOK_S


def test_a_pool_without_work_is_empty_after_the_idle_grace() -> None:
    lines = _lines(Wish(0.0, "push", (JobPlan(2.0),)))
    results = [at for at, what in lines if what.startswith("step turn") and "[[1]" in what]
    left = next(_times(lines, "exit")) - results[-1]
    assert 0.9 * IDLE_EXIT_S < left < IDLE_EXIT_S / (1 - DRIFT) + LOOK_S


def test_a_job_in_an_empty_pool_has_a_worker_by_its_own_push() -> None:
    lines = _lines(Wish(0.0, "push", (JobPlan(2.0),)), Wish(60.0, "push", (JobPlan(2.0),)))
    pushed = list(_times(lines, "step push"))
    boots = list(_times(lines, "boot"))
    assert len(pushed) == len(boots) == 2
    assert all(boot - push < LAUNCH_S for push, boot in zip(pushed, boots, strict=True))


def test_the_table_of_jobs_has_the_numbers_of_the_code() -> None:
    text = GUARANTEES.read_text()
    table = text[text.index("## Jobs") :].split("\n\n")[2]
    beat, stale, idle = (int(x.total_seconds()) for x in (HEARTBEAT, STALE_AFTER, IDLE_EXIT))
    for arithmetic in (
        f"two heartbeats ({stale} s) and the next check: {stale} + {CHECK_S:.0f} = {stale + CHECK_S:.0f} s",
        f"its next heartbeat: {beat} s",
        f"the idle grace: {idle} s",
    ):
        assert arithmetic in table
