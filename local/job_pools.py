"""Job pools on one machine: workers are processes, checks run in the engine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from lambdas.wiring import JobWiring
from muster import blueprint, keys
from muster.errors import Refused
from muster.functions import job_pool_event
from muster.jobs import connect
from muster.jobs.capacity import HOME_VARIABLE, ProcessLauncher
from muster.jobs.service import WorkAdded
from muster.jobs.triggers import (
    POOL_MANAGER,
    Effects,
    Trigger,
    TriggerType,
    load,
    on_work_added,
    spawn,
)
from muster.launchers.procfs import leaders
from muster.store import Store, command

#: A nudge to run pool_manager for one job pool; its name follows.
ONE_POOL = f"{blueprint.FN_POOL_MANAGER.name}/"
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


def triggers_of(file: Path) -> list[Trigger]:
    """The triggers of a file, if the engine can do what they say."""
    found = load(file)
    for trigger in found:
        if trigger.type is TriggerType.LAMBDA and trigger.function != POOL_MANAGER:
            raise Refused(
                f"triggers {file}: trigger {trigger.name}: the engine runs {POOL_MANAGER} for job pools, "
                f"not {trigger.function}"
            )
    return found


def waking(
    found: Sequence[Trigger], store: Store, jobs_url: str, logs: Path
) -> Callable[[WorkAdded], WorkAdded]:
    """For the API's router: a pool that got work is told to the triggers, whose effects stay with the engine.

    A process that one of them starts is found, and ended, by the variable that its job workers are found by.
    The function runs in the engine: the API tells it by a nudge that holds the pool.
    """

    def invoke_here(_function: str, event: Mapping[str, Any]) -> None:
        store.one(command("PUBLISH", keys.NUDGE, f"{ONE_POOL}{event['pool_id']}", parse=int))

    env = os.environ | {HOME_VARIABLE: str(logs.resolve())}
    return lambda check: on_work_added(
        found, Effects(check, jobs_url, invoke=invoke_here, spawn=lambda words: spawn(words, env))
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
