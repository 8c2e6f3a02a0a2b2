"""Job pools on one machine: workers are processes, checks run in the engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from lambdas.wiring import JobWiring
from muster import blueprint
from muster.functions import job_pool_event
from muster.jobs import connect
from muster.jobs.capacity import HOME_VARIABLE, ProcessLauncher
from muster.launchers.procfs import leaders

#: Starts a function of the control plane with an event, asynchronously.
Invoke = Callable[[str, dict[str, Any]], None]


def job_wiring(valkey_url: str, logs: Path, invoke: Invoke) -> JobWiring:
    """Pools on the engine's own Valkey."""
    url = valkey_url.replace("redis", "valkey", 1)
    return JobWiring(
        connect(url),
        ProcessLauncher(url, log_folder=logs),
        lambda pool: invoke(blueprint.FN_POOL_MANAGER.name, job_pool_event(pool)),
        lambda: invoke(blueprint.FN_MAINTENANCE_WORKER.name, {"source": "muster.jobs"}),
    )


def end_job_workers(logs: Path) -> None:
    """An engine that stops leaves nothing running. SIGTERM, the time of a drain, SIGKILL; jobs go back."""
    mine = {HOME_VARIABLE: str(logs.resolve())}
    deadline = time.monotonic() + blueprint.DRAIN_GRACE.total_seconds() + 5
    told: set[int] = set()
    while living := {pid for pid, _ in leaders(mine)}:
        late = time.monotonic() > deadline
        for pid in living if late else living - told:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
        told |= living
        time.sleep(0.05)
