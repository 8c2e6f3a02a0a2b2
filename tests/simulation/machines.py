"""What the state machines share: one deterministic profile, and the two kinds of store they run on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fakeredis
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import muster.store as core_store
from muster.store import Step

ROOT = Path(__file__).parents[2]

#: Many histories where a step costs microseconds, fewer where it is a round trip to the real server.
STORES = [("fakeredis", 60), ("valkey", 15)]

#: Soon is better than short: the 300 s of the library are beyond the time limit
#: of a test, which would then end without a word of what broke.
SHRINK_S = 20


def run(
    machine: Callable[[], RuleBasedStateMachine],
    examples: int,
    steps: int = 30,
    scripts: Iterable[str] = (),
) -> None:
    """The same histories on every machine and every run: a red run is red again. `scripts` are the Lua files
    that these histories stand for, and each of them must have been run in one."""
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        derandomize=True,
        deadline=None,
        database=None,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    ran: set[str] = set()
    words = core_store.words_of

    def noting(step: Step[Any]) -> tuple[Any, ...]:
        if step.script is not None:
            ran.add(named(step.script))
        return words(step)

    with (
        patch.object(core_store, "words_of", noting),
        patch.object(engine, "MAX_SHRINKING_SECONDS", SHRINK_S),
    ):
        run_state_machine_as_test(machine, settings=profile)
    assert set(scripts) <= ran, f"in no history: {sorted(set(scripts) - ran)}"


def named(script: Path) -> str:
    """A Lua file as the machines name it: `muster/lua/take_mark`."""
    return script.resolve().relative_to(ROOT).with_suffix("").as_posix()


def of(folder: str, *names: str) -> frozenset[str]:
    """Lua files of one folder, by name."""
    return frozenset(f"{folder}/{name}" for name in names)


def client_of(kind: str, request: pytest.FixtureRequest) -> Any:
    if kind == "fakeredis":
        return fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
    return request.getfixturevalue("valkey")
