"""`muster capacity`: how many workers one instance holds, why, and what the worst case is."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from muster.blueprint import WORKER_PROFILES
from muster.capacity import Room, room


def capacity(
    profile: Annotated[str, typer.Option(help=f"One of {', '.join(WORKER_PROFILES)}.")] = "seed",
    registered_mb: Annotated[
        int | None,
        typer.Option(help="What one of your instances registers, in MiB; else an estimate.", min=1),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Stable fields for programs.")] = False,
) -> None:
    """Show how many workers fit on one instance, with the arithmetic, the headroom and the worst case.

    Example: muster capacity --profile dense
    """
    if profile not in WORKER_PROFILES:
        raise typer.BadParameter(f"choose one of {', '.join(WORKER_PROFILES)}", param_hint="--profile")
    seen = room(profile, registered_mb)
    if as_json:
        typer.echo(json.dumps(_answer(seen)))
        return
    fleet, task = seen.fleet, seen.fleet.task
    table = Table("bound", "workers", "arithmetic")
    for bound in seen.bounds:
        table.add_row(bound.name, str(bound.room), bound.arithmetic)
    console = Console(soft_wrap=True)
    console.print(
        f"profile {profile}: {fleet.tasks_per_instance} workers on one {fleet.instance.type}, each "
        f"{task.cpu_units} CPU units, {task.soft_memory_mb} MB soft, {task.hard_memory_mb} MB hard"
    )
    console.print(table)
    console.print(
        f"headroom    {seen.headroom} workers below the tightest bound ({seen.tightest.name}); "
        f"{seen.free_mb} MB of {seen.for_tasks_mb} not reserved"
    )
    console.print(
        f"worst case  {seen.at_hard_limit} at their hard limit at once, all others using what they reserve; "
        "beyond that the kernel ends the largest, and its user is started again"
    )
    console.print(
        f"            a lost instance starts {fleet.tasks_per_instance} users elsewhere: "
        f"{seen.refill_s:.1f} s of the call budget above its burst"
    )
    if not seen.fits:
        console.print(f"{fleet.tasks_per_instance} do not fit: {seen.tightest.name}", style="red")
        raise typer.Exit(1)


def _answer(seen: Room) -> dict[str, object]:
    task = seen.fleet.task
    return {
        "profile": seen.profile,
        "instance": seen.fleet.instance.type,
        "workers_per_instance": seen.fleet.tasks_per_instance,
        "cpu_units": task.cpu_units,
        "soft_memory_mb": task.soft_memory_mb,
        "hard_memory_mb": task.hard_memory_mb,
        "registered_mb": seen.registered_mb,
        "bounds": {bound.name: bound.room for bound in seen.bounds},
        "tightest": seen.tightest.name,
        "headroom": seen.headroom,
        "free_mb": seen.free_mb,
        "at_hard_limit": seen.at_hard_limit,
        "refill_s": round(seen.refill_s, 1),
        "fits": seen.fits,
    }
