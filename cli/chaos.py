"""`muster chaos`: break everything around the workers; the broker and their own journals are the judges."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer


def chaos(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults are injected.")] = 2.0,
    seed: Annotated[int, typer.Option(help="One seed, one plan of faults.")] = 1,
    plot: Annotated[Path | None, typer.Option(help="Write a picture of the run here (SVG or PNG).")] = None,
    json_output: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else.")
    ] = False,
) -> None:
    """Break workers, Valkey, the queues, the broker, the API and the engine while users trade; then audit.

    Example: muster chaos --minutes 2 --seed 7 --plot chaos.svg
    """
    from rich.console import Console

    from local.chaos import Chaos
    from local.chaos_report import plot as draw

    console = Console(stderr=True, quiet=json_output)
    with tempfile.TemporaryDirectory(prefix="muster-chaos-") as folder:
        report = Chaos(
            Path(folder), seed, minutes * 60, lambda line: console.print(line, highlight=False)
        ).run()
    if plot is not None:
        draw(report, plot)
    summary = report.summary()
    if json_output:
        print(json.dumps(summary))
    else:
        console.print_json(data=summary)
        if report.left_out:
            never = ", ".join(report.left_out)
            console.print(f"Never struck, so not shown: {never}. Give it more minutes.", style="yellow")
        for broken in report.broken:
            console.print(f"PROMISE BROKEN: {broken}", style="bold red")
    raise typer.Exit(1 if report.broken else 0)
