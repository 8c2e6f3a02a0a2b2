"""Job pools on one machine: workers are processes, checks run in the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lambdas.wiring import JobWiring
from muster import blueprint
from muster.jobs import connect
from muster.jobs.capacity import ProcessLauncher

#: Starts a function of the control plane with an event, asynchronously.
Invoke = Callable[[str, dict[str, Any]], None]


def job_wiring(valkey_url: str, logs: Path, invoke: Invoke) -> JobWiring:
    """Pools on the engine's own Valkey."""
    url = valkey_url.replace("redis", "valkey", 1)
    return JobWiring(
        connect(url),
        ProcessLauncher(url, log_folder=logs),
        lambda pool: invoke(blueprint.FN_POOL_MANAGER.name, {"source": "muster.jobs", "pool_id": pool}),
        lambda: invoke(blueprint.FN_MAINTENANCE_WORKER.name, {"source": "muster.jobs"}),
    )
