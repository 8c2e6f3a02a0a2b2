"""`muster supervise`: one process per key of a file, on this host."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Annotated

import typer

from muster.scrub import guard
from supervisor.main import run
from supervisor.timings import API_PORT


def supervise(
    file: Annotated[Path, typer.Argument(help="The workers to run, e.g. examples/workers.yml.")],
    valkey_url: Annotated[
        str | None,
        typer.Option(envvar="VALKEY_URL", help="Valkey, DragonflyDB or Redis; else an embedded one."),
    ] = None,
    api_port: Annotated[int, typer.Option(help="Port of API and fleet page; 0: any.")] = API_PORT,
    prefix: Annotated[str, typer.Option(help="First part of every key: one fleet per prefix.")] = "muster",
) -> None:
    """Run one worker process per key of FILE and keep them alive.

    SIGHUP reads FILE again. SIGTERM and SIGINT let the workers finish, for up to 30 seconds.
    Exit codes: 0 stopped, 1 the API's port is taken, 2 FILE is broken, 4 another supervisor runs,
    5 the server does not answer.

    Example: muster supervise examples/workers.yml
    """
    guard()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    raise typer.Exit(run(file, valkey_url, api_port, prefix, os.environ))


if __name__ == "__main__":
    typer.run(supervise)
