"""The process of one key: `python -m worker.cycle_main <key>`. Everything else comes in the environment.

WORKER_SPEC (JSON: strategy, interval_sec, settings), MUSTER_PREFIX, VALKEY_URL, MUSTER_DATA, and
INTERVAL_SEC, which overrides the interval of every worker.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from muster.clock import SystemClock
from muster.errors import TryLater
from muster.scrub import guard
from muster.store import Store
from supervisor.timings import INTERVAL_SEC, Timings
from worker.cycle import worker_class
from worker.cycle_keys import Keys

SPEC = "WORKER_SPEC"
PREFIX = "MUSTER_PREFIX"
URL = "VALKEY_URL"
DATA = "MUSTER_DATA"


def connect(url: str, *, retries: int) -> Any:
    """A client that answers or fails within seconds; one retry covers a connection the server closed."""
    return redis.Redis.from_url(
        url,
        decode_responses=True,
        socket_timeout=5,
        socket_connect_timeout=5,
        retry=Retry(NoBackoff(), retries),
    )


def load_strategy(reference: str) -> Any:
    """The object `package.module:name` points at."""
    module, _, name = reference.partition(":")
    return getattr(importlib.import_module(module), name)


async def _live(key: str, environment: Mapping[str, str]) -> int:
    spec = json.loads(environment[SPEC])
    interval = float(environment.get("INTERVAL_SEC") or spec.get("interval_sec") or INTERVAL_SEC)
    url = environment[URL]
    worker = worker_class(load_strategy(spec["strategy"]))(
        key,
        store=Store(connect(url, retries=1)),
        # No silent retry here: a broken subscription is news (see worker/cycle_heart.py).
        ear_client=connect(url, retries=0),
        clock=SystemClock(),
        keys=Keys(environment.get(PREFIX, "muster")),
        timings=Timings.from_environment(environment),
        interval_sec=interval,
        settings=spec.get("settings") or {},
        data=Path(environment.get(DATA, ".data")),
    )
    # Before the lock is taken, so that whoever holds it also gives it back when asked to leave.
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.ask_to_leave, signal.Signals(number).name)
    return await worker.run()


def main() -> None:
    guard()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        code = asyncio.run(_live(sys.argv[1], os.environ))
    except TryLater as away:
        sys.exit(f"{sys.argv[1]}: {away}")
    sys.exit(code)


if __name__ == "__main__":
    main()
