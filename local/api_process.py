"""The API as a child of the local engine: `python -m local.api_process --port N --logs D`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

import uvicorn

from api.app import create_app
from api.audit import write_log
from api.fleet import Fleet
from api.orders import OrderDesk
from api.routes import jobs, orders
from api.tokens import Tokens
from muster.aws import aws
from muster.clients import aws_client, valkey_client
from muster.jobs import connect
from muster.jobs.capacity import ProcessLauncher
from muster.queues import SqsCommands
from muster.scrub import guard
from muster.settings import Settings
from muster.store import Store


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--logs", type=Path, required=True)
    arguments = parser.parse_args()
    guard()
    write_log(sys.stderr)
    threading.Thread(target=_end_with_the_engine, daemon=True).start()
    settings = Settings.from_env(os.environ)
    store = Store(valkey_client(settings))
    commands = SqsCommands(aws(settings, "sqs"), settings.queue_worker_control)
    jobs_url = settings.valkey_url.replace("redis", "valkey", 1)
    wake = None
    if settings.job_triggers:
        from local.job_pools import triggers_of, waking

        wake = waking(triggers_of(Path(settings.job_triggers)), store, jobs_url, arguments.logs)
    fleet = Fleet(store, aws_client(settings, "sqs"), settings, logs=arguments.logs, commands=commands)
    app = create_app(
        fleet,
        fleet.together,
        Tokens.of(settings),
        orders.router(OrderDesk(store)),
        jobs.router(connect(jobs_url), ProcessLauncher(jobs_url, log_folder=arguments.logs), wake),
    )
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=arguments.port,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=3,  # an open event stream must not hold up the end
    )


def _end_with_the_engine() -> None:
    """The engine holds the other end of our standard input; when that closes, however it ended, so do we."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
