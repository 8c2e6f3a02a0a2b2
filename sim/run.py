"""Run seeds: one with its trace, or very many in parallel; shrink the plan of one that fails."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from types import ModuleType
from typing import Any, TypeVar

from sim.install import installed
from sim.plan import Plan, make_plan
from sim.world import World

#: Seeds one task of a parallel run takes: enough to make its overhead vanish, few enough for a live progress.
CHUNK = 25


@dataclass(slots=True)
class Outcome:
    """What became of one seed."""

    seed: int
    steps: int
    faults: dict[str, int]
    trace_hash: str
    worst_overlap_s: float
    lossy: bool
    violation: str = ""
    what: str = ""
    at_s: float = 0.0


def run_plan(plan: Plan, *, keep_trace: bool = False, backend: Any = None) -> tuple[Outcome, list[str]]:
    """Live through one plan. Call inside `installed()`."""
    world = World(plan, keep_trace=keep_trace, backend=backend)
    world.run()
    outcome = Outcome(
        plan.seed,
        world.loop.steps,
        dict(world.faults),
        world.trace_hash,
        round(world.worst_overlap, 3),
        plan.lossy,
    )
    if world.violation is not None:
        outcome.violation, outcome.what = world.violation.invariant, world.violation.what
        outcome.at_s = round(world.violation.at, 3)
    return outcome, world.lines or []


def run_seed(seed: int) -> Outcome:
    """One seed, for its outcome only."""
    with installed():
        return run_plan(make_plan(seed))[0]


def run_seeds(seeds: range) -> list[Outcome]:
    with installed():
        return [run_plan(make_plan(seed))[0] for seed in seeds]


#: A plan of this world, or of another one that has faults and wishes (`sim.jobs.plan`).
AnyPlan = TypeVar("AnyPlan")


def shrink(plan: AnyPlan, violation: str, world: ModuleType = sys.modules[__name__]) -> AnyPlan:
    """The smallest plan found that still breaks this invariant, by leaving out one happening at a time.

    `world` is a module like this one, with `installed` and `run_plan`.
    """

    def still_fails(smaller: AnyPlan) -> bool:
        return bool(world.run_plan(smaller)[0].violation == violation)

    with world.installed():
        shrunk = True
        while shrunk:
            shrunk = False
            for parts in ("faults", "wishes"):
                for number in reversed(range(len(getattr(plan, parts)))):
                    smaller = getattr(plan, f"without_{parts}")(number)
                    if still_fails(smaller):
                        plan, shrunk = smaller, True
    return plan


@dataclass(slots=True)
class Report:
    """The one object that `muster sim --json` prints."""

    first_seed: int
    seeds: int = 0
    steps: int = 0
    faults: dict[str, int] = field(default_factory=dict)  #: how often each kind struck
    violations: list[dict[str, Any]] = field(default_factory=list)
    worst_overlap_durable_s: float = 0.0
    worst_overlap_lossy_s: float = 0.0
    trace_hash: str = ""

    def add(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.steps += outcome.steps
        for kind, times in sorted(outcome.faults.items()):
            self.faults[kind] = self.faults.get(kind, 0) + times
        if outcome.violation:
            kept = asdict(outcome)
            self.violations.append({k: kept[k] for k in ("seed", "violation", "what", "at_s")})
        if outcome.lossy:
            self.worst_overlap_lossy_s = max(self.worst_overlap_lossy_s, outcome.worst_overlap_s)
        else:
            self.worst_overlap_durable_s = max(self.worst_overlap_durable_s, outcome.worst_overlap_s)
        self.trace_hash = blake2b((self.trace_hash + outcome.trace_hash).encode(), digest_size=16).hexdigest()


def run_many(
    first: int,
    count: int,
    *,
    processes: int,
    progress: Callable[[Report], None] = lambda _: None,
    seeds_of: Callable[[range], list[Outcome]] = run_seeds,
) -> Report:
    """Seeds `first` to `first + count - 1`. The report does not depend on the number of processes."""
    report = Report(first)
    for outcomes in _in_chunks(first, count, processes, seeds_of):
        for outcome in outcomes:
            report.add(outcome)
        progress(report)
    return report


def _in_chunks(
    first: int, count: int, processes: int, seeds_of: Callable[[range], list[Outcome]]
) -> Iterator[list[Outcome]]:
    chunks = [range(at, min(at + CHUNK, first + count)) for at in range(first, first + count, CHUNK)]
    if processes == 1:
        yield from map(seeds_of, chunks)
        return
    # spawn: a forked child would inherit the threads' locks of whoever calls (a test runner, an API).
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(seeds_of, chunks)
