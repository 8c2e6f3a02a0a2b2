"""What the state machines share: one deterministic profile, and the two kinds of store they run on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import fakeredis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

#: Many histories where a step costs microseconds, fewer where it is a round trip to the real server.
STORES = [("fakeredis", 60), ("valkey", 15)]


def run(machine: Callable[[], RuleBasedStateMachine], examples: int, steps: int = 30) -> None:
    """The same histories on every machine and every run: a red run is red again."""
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=profile)


def client_of(kind: str, request: pytest.FixtureRequest) -> Any:
    if kind == "fakeredis":
        return fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
    return request.getfixturevalue("valkey")
