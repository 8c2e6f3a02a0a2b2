"""What the supervisor reads from and writes to the shared store, apart from its lock."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from typing import Any

from muster.clock import Clock
from muster.errors import TryLater
from muster.store import Store, command, text
from supervisor.slot import Report
from supervisor.timings import Timings, milliseconds
from worker.cycle_keys import Keys

_LOG = logging.getLogger(__name__)


class Books:
    """The shared keys of one fleet. Every method may raise TryLater when the server is away."""

    def __init__(self, store: Store, keys: Keys, timings: Timings, clock: Clock) -> None:
        self._store, self._keys, self._timings, self._clock = store, keys, timings, clock

    def reports(self, names: list[str]) -> dict[str, Report]:
        """Heartbeat, state and restart flag of every key, in one round trip."""
        if not names:
            return {}
        now, wall = self._clock.monotonic(), self._clock.now()
        kinds = (self._keys.heartbeat, self._keys.state, self._keys.restarting)
        wanted = [name(key) for key in names for name in kinds]
        values = iter(self._store.one(command("MGET", *wanted, parse=list)))
        return {
            key: Report(
                None if beat is None else now - (wall - int(beat) / 1000), _state(state), flag is not None
            )
            for key, beat, state, flag in zip(names, values, values, values, strict=True)
        }

    def lock_value(self, key: str) -> str | None:
        """Who holds the lock of a key."""
        return self._store.one(
            command("GET", self._keys.lock(key), parse=lambda value: None if value is None else text(value))
        )

    def active(self) -> set[str]:
        """Keys that have, or should have, a worker."""
        return self._members(self._keys.workers)

    def stopped(self) -> set[str]:
        """Keys a person stopped."""
        return self._members(self._keys.stopped)

    def write(self, active: Iterable[str], stopped: Iterable[str]) -> None:
        """Make the two sets say what this supervisor knows, also on a server that was just emptied."""
        for name, members in ((self._keys.workers, set(active)), (self._keys.stopped, set(stopped))):
            present = self._members(name)
            if present - members:
                self._store.one(command("SREM", name, *sorted(present - members), parse=int))
            if members - present:
                self._store.one(command("SADD", name, *sorted(members - present), parse=int))

    def flag_restart(self, key: str) -> None:
        ttl = milliseconds(self._timings.restarting_ttl)
        self._store.one(command("SET", self._keys.restarting(key), "1", "PX", ttl, parse=bool))

    def clear_restart(self, key: str) -> None:
        self._store.one(command("DEL", self._keys.restarting(key), parse=int))

    def publish(self, message: str) -> None:
        """Say it on the control channel; never raises, since a signal always goes with it."""
        try:
            self._store.one(command("PUBLISH", self._keys.control, message, parse=int))
        except TryLater as away:
            _LOG.warning("%s not published, the signal must do: %s", message, away)

    def _members(self, name: str) -> set[str]:
        return set(self._store.one(command("SMEMBERS", name, parse=lambda reply: [text(v) for v in reply])))


def _written(heartbeat: Any, offset: float) -> float | None:
    """When a heartbeat was written, moved by `offset` to another clock; one that is no number is none."""
    try:
        return int(heartbeat) / 1000 + offset
    except (TypeError, ValueError):
        return None


def _state(value: Any) -> dict[str, object] | None:
    """The published state; a text that is no JSON object is an error of the worker, and shown as one."""
    if value is None:
        return None
    try:
        state = json.loads(text(value))
    except ValueError:
        state = None
    if isinstance(state, dict):
        return state
    return {"error": f"its state is no JSON object: {text(value)[:80]!r}"}
