"""The control plane's functions, started by name and not waited for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from muster.errors import TryLater, aws_errors


def invoke(functions: Any, name: str, event: Mapping[str, Any]) -> None:
    """Asynchronous invoke. A refusal is not swallowed: whoever depends on it fails and is seen to."""
    try:
        functions.invoke(FunctionName=name, InvocationType="Event", Payload=json.dumps(event).encode())
    except aws_errors() as away:
        raise TryLater(f"{name} could not be invoked ({away}); the schedule tries again") from away


def job_pool_event(pool: str) -> dict[str, str]:
    """What makes pool_manager look at one job pool now."""
    return {"source": "muster.jobs", "pool_id": pool}
