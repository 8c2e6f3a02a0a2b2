"""`muster sim`: live through seeded histories of the real code, and say which of them broke a promise."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cli.study import study

if TYPE_CHECKING:
    from sim.plan import Plan
    from sim.run import Outcome, Report

app = typer.Typer(invoke_without_command=True, no_args_is_help=False, add_completion=False)
app.command("study")(study)


@app.callback()
def sim(
    ctx: typer.Context,
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

    Example: muster sim --seeds 1000
    """
    if ctx.invoked_subcommand is not None:
        return
    if trace and seed is None:
        raise typer.BadParameter("one history at a time: give --seed N too", param_hint="--trace")
    broken = (
        _one(seed, trace=trace, as_json=as_json)
        if seed is not None
        else _many(first, seeds, processes or os.cpu_count() or 1, as_json=as_json)
    )
    raise typer.Exit(1 if broken else 0)


def _one(seed: int, *, trace: bool, as_json: bool) -> bool:
    """Replay one seed; if it breaks a promise, say with how few faults it still does."""
    from sim.install import installed
    from sim.plan import make_plan
    from sim.run import run_plan, shrink

    plan = make_plan(seed)
    with installed():
        outcome, lines = run_plan(plan, keep_trace=trace)
    if trace:
        # With --json the trace is for the eye, the object for the program.
        print("\n".join(lines), file=sys.stderr if as_json else sys.stdout)
    smallest = shrink(plan, outcome.violation) if outcome.violation else None
    if as_json:
        answer: dict[str, Any] = asdict(outcome)
        answer["shrunk"] = _plan_lines(smallest) if smallest else []
        print(json.dumps(answer))
        return bool(outcome.violation)
    _say_one(outcome, plan, smallest)
    return bool(outcome.violation)


def _say_one(outcome: Outcome, plan: Plan, smallest: Plan | None) -> None:
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


def _plan_lines(plan: Plan) -> list[str]:
    happenings = [(wish.at, f"{wish.at:7.1f}s {wish.action} {wish.user}".rstrip()) for wish in plan.wishes]
    happenings += [(fault.at, str(fault)) for fault in plan.faults]
    return [line for _, line in sorted(happenings)]


def _many(first: int, seeds: int, processes: int, *, as_json: bool) -> bool:
    from sim.run import run_many

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("seeds", total=seeds)
        report = run_many(
            first,
            seeds,
            processes=processes,
            progress=lambda report: progress.update(
                bar, completed=report.seeds, description=f"seeds, {len(report.violations)} broken"
            ),
        )
    if as_json:
        print(json.dumps(asdict(report)))
    else:
        _say_many(report, console)
    return bool(report.violations)


def _say_many(report: Report, console: Console) -> None:
    for broken in report.violations[:20]:
        console.print(f"seed {broken['seed']}: [red]{broken['violation']}[/red]: {broken['what']}")
    if report.violations:
        console.print(f"replay one with: muster sim --seed {report.violations[0]['seed']} --trace")
    console.print(
        f"{report.seeds} seeds from {report.first_seed}, {report.steps} steps, "
        f"{sum(report.faults.values())} faults, {len(report.violations)} broken; worst overlap "
        f"{report.worst_overlap_durable_s} s (durable), {report.worst_overlap_lossy_s} s (lost writes); "
        f"trace {report.trace_hash}"
    )
