"""`muster sim`: live through seeded histories of the real code, and say which of them broke a promise."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cli.study import study

if TYPE_CHECKING:
    from sim.jobs.plan import Plan as JobsPlan
    from sim.plan import Plan
    from sim.run import Outcome, Report

app = typer.Typer(invoke_without_command=True, no_args_is_help=False, add_completion=False)
app.command("study")(study)


class World(StrEnum):
    """Which promises are at stake."""

    USERS = "users"  #: one worker per user: the core, the handlers, the workers
    JOBS = "jobs"  #: job pools that scale to zero: backend, capacity, reaper, job workers


#: Each is a module with `make_plan`, `installed`, `run_plan` and `run_seeds`.
_MODULES = {World.USERS: "sim.run", World.JOBS: "sim.jobs.run"}


@app.callback()
def sim(
    ctx: typer.Context,
    world: Annotated[World, typer.Option(help="users: one worker per user. jobs: job pools.")] = World.USERS,
    seed: Annotated[int | None, typer.Option(help="Replay this one seed.", min=0)] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="With --seed: print everything that happens.")
    ] = False,
    first: Annotated[int, typer.Option("--from", help="First seed.", min=0)] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 1000,
    processes: Annotated[int, typer.Option(help="How many at a time; 0 is one per core.", min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Stable fields for programs.")] = False,
) -> None:
    """Run the core, the handlers and the workers on virtual time, under faults. Exit 1 if a promise broke.

    Example: muster sim --world jobs --seeds 1000
    """
    if ctx.invoked_subcommand is not None:
        return
    if trace and seed is None:
        raise typer.BadParameter("one history at a time: give --seed N too", param_hint="--trace")
    broken = (
        _one(world, seed, trace=trace, as_json=as_json)
        if seed is not None
        else _many(world, first, seeds, processes or os.cpu_count() or 1, as_json=as_json)
    )
    raise typer.Exit(1 if broken else 0)


def _one(world: World, seed: int, *, trace: bool, as_json: bool) -> bool:
    """Replay one seed; if it breaks a promise, say with how few faults it still does."""
    from sim.run import shrink

    module = import_module(_MODULES[world])
    plan = module.make_plan(seed)
    with module.installed():
        outcome, lines = module.run_plan(plan, keep_trace=trace)
    if trace:
        # With --json the trace is for the eye, the object for the program.
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)
    smallest = shrink(plan, outcome.violation, module) if outcome.violation else None
    if as_json:
        answer = _fields(world, outcome)
        answer["shrunk"] = _plan_lines(smallest) if smallest else []
        print(json.dumps(answer))
        return bool(outcome.violation)
    _say_one(outcome, plan, smallest)
    return bool(outcome.violation)


def _say_one(outcome: Outcome, plan: Plan | JobsPlan, smallest: Plan | JobsPlan | None) -> None:
    console = Console(stderr=True, highlight=False)
    kind = "a store that may lose acknowledged writes" if plan.lossy else "a durable store"
    console.print(f"seed {plan.seed}: {outcome.steps} steps on {kind}, trace {outcome.trace_hash}")
    if smallest is None:
        console.print("every promise held")
        return
    console.print(f"[red]{outcome.violation}[/red] at {outcome.at_s} s: {outcome.what}")
    console.print(f"still broken with {len(smallest.faults)} of {len(plan.faults)} faults:")
    for line in _plan_lines(smallest):
        console.print(f"  {line}", markup=False)


def _plan_lines(plan: Plan | JobsPlan) -> list[str]:
    return [str(what) for what in sorted((*plan.wishes, *plan.faults), key=lambda what: (what.at, str(what)))]


def _fields(world: World, what: Outcome | Report) -> dict[str, Any]:
    """What `--json` prints. Two workers of one user can overlap; in a job pool that is not a question."""
    overlaps = world is World.USERS
    return {name: value for name, value in asdict(what).items() if overlaps or "overlap" not in name}


def _many(world: World, first: int, seeds: int, processes: int, *, as_json: bool) -> bool:
    from sim.run import run_many

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("seeds", total=seeds)
        report = run_many(
            first,
            seeds,
            processes=processes,
            seeds_of=import_module(_MODULES[world]).run_seeds,
            progress=lambda report: progress.update(
                bar, completed=report.seeds, description=f"seeds, {len(report.violations)} broken"
            ),
        )
    if as_json:
        print(json.dumps(_fields(world, report)))
    else:
        _say_many(world, report, console)
    return bool(report.violations)


def _say_many(world: World, report: Report, console: Console) -> None:
    for broken in report.violations[:20]:
        console.print(f"seed {broken['seed']}: [red]{broken['violation']}[/red]: {broken['what']}")
    if report.violations:
        seed = report.violations[0]["seed"]
        console.print(f"replay one with: muster sim --world {world} --seed {seed} --trace")
    overlap = (
        f"worst overlap {report.worst_overlap_durable_s} s (durable), "
        f"{report.worst_overlap_lossy_s} s (lost writes); "
    )
    console.print(
        f"{report.seeds} seeds from {report.first_seed}, {report.steps} steps, "
        f"{sum(report.faults.values())} faults, {len(report.violations)} broken; "
        f"{overlap if world is World.USERS else ''}trace {report.trace_hash}"
    )
