"""`muster up`: the whole system on this machine, until Ctrl-C."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from muster import blueprint
from muster.errors import MusterError
from muster.scrub import guard


def up(
    dir: Annotated[Path, typer.Option(help="Where everything lives.")] = Path(".muster"),
    api_port: Annotated[int, typer.Option(help="Port of the API; 0 is any free one.")] = 3001,
    aws_port: Annotated[int, typer.Option(help="Port of the local AWS endpoint; 0 is any free one.")] = 4566,
    valkey_port: Annotated[int, typer.Option(help="Port of the embedded Valkey; 0 is any free one.")] = 6390,
    valkey_url: Annotated[str, typer.Option(help="Use this server instead of the embedded one.")] = "",
    pool: Annotated[int, typer.Option(min=0, help="Warm workers to keep.")] = blueprint.POOL_TARGET,
    speed: Annotated[float, typer.Option(min=0.1, help="Run the schedules this much faster.")] = 1.0,
    claim_channel: Annotated[str, typer.Option(help="How claims travel: valkey or sqs.")] = "valkey",
    session: Annotated[str, typer.Option(help="What a worker does: idle, broker, or module:Class.")] = "idle",
    otlp: Annotated[str, typer.Option(help="Send OpenTelemetry spans of each start to this address.")] = "",
    launch: Annotated[
        str, typer.Option(help="How workers start: fork (from a preloaded process) or exec (each its own).")
    ] = "fork",
    triggers: Annotated[
        Path | None,
        typer.Option(
            envvar="MUSTER_JOB_TRIGGERS",
            help="A triggers.yml: how a job pool that got work is checked; by default at once.",
        ),
    ] = None,
) -> None:
    """Start the whole system on this machine: Valkey, queues, functions, workers, API. Ctrl-C stops it.

    Example: muster up --pool 8 --speed 10
    """
    from local.engine import LAUNCHES, Engine, Options

    guard()
    console = Console(stderr=True)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s", stream=sys.stderr)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if claim_channel not in ("valkey", "sqs"):
        console.print(f"--claim-channel is {claim_channel!r}: use valkey or sqs", style="red")
        raise typer.Exit(2)
    if launch not in LAUNCHES:
        console.print(f"--launch is {launch!r}: use {' or '.join(LAUNCHES)}", style="red")
        raise typer.Exit(2)
    if triggers is not None:
        from local.job_pools import triggers_of

        try:
            triggers_of(triggers)
        except MusterError as wrong:
            console.print(str(wrong), style="red", markup=False)
            raise typer.Exit(2) from wrong
    engine = Engine(
        Options(
            *(dir, api_port, aws_port, valkey_port, valkey_url, pool, speed, claim_channel, session),
            otlp=otlp,
            launch=launch,
            triggers=triggers,
        )
    )
    try:
        endpoints = engine.start()
    except MusterError as refused:
        console.print(str(refused), style="red")
        engine.abandon()
        raise typer.Exit(1) from refused
    except RuntimeError as failed:
        console.print(str(failed), style="red")
        engine.stop()
        raise typer.Exit(1) from failed
    console.print(f"[bold]Muster is up[/bold] in {dir}")
    console.print(f"  API     {endpoints['api']}    a token for its page: muster token")
    console.print(f"  AWS     {endpoints['aws']}    Valkey {endpoints['valkey']}")
    console.print("  next    muster start u1 --wait      stop with Ctrl-C")
    stop.wait()
    console.print("stopping: workers drain, then everything ends")
    engine.stop()
