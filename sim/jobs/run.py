"""Run seeds of the job world: one with its trace, or very many."""

from __future__ import annotations

from sim.jobs.install import installed
from sim.jobs.plan import Plan, make_plan
from sim.jobs.world import JobWorld
from sim.run import Outcome
from sim.store_world import Backend


def run_plan(
    plan: Plan, *, keep_trace: bool = False, backend: Backend | None = None
) -> tuple[Outcome, list[str]]:
    """Live through one plan. Call inside `installed()`."""
    world = JobWorld(plan, keep_trace=keep_trace, backend=backend)
    world.run()
    outcome = Outcome(plan.seed, world.loop.steps, dict(world.faults), world.trace_hash, 0.0, plan.lossy)
    if world.violation is not None:
        outcome.violation, outcome.what = world.violation.invariant, world.violation.what
        outcome.at_s = round(world.violation.at, 3)
    return outcome, world.lines or []


def run_seeds(seeds: range) -> list[Outcome]:
    with installed():
        return [run_plan(make_plan(seed))[0] for seed in seeds]
