"""Small worlds for tests of the core: a store, a fake launcher, recorded commands, workers by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from muster import steps
from muster.claims import Claim, ValkeyChannel
from muster.clock import Clock, SystemClock
from muster.commands import Action, Command
from muster.deps import Deps
from muster.launchers.fake import FakeLauncher
from muster.model import Assignment, Cause, Via
from muster.store import Step, Store

_ids = itertools.count(1)
_times = itertools.count(1_700_000_000_000)


def command(action: str, user: str = "u1", **more: Any) -> Command:
    """A command as the API would send it; each is issued one millisecond after the one before."""
    values = {
        "action": Action(action),
        "user_id": user,
        "command_id": f"c{next(_ids)}",
        "issued_at": datetime.fromtimestamp(next(_times) / 1000, UTC),
    }
    return Command(**(values | more))


@dataclass
class RecordedCommands:
    """A `CommandSender` that keeps what it was given."""

    sent: list[Command] = field(default_factory=list)

    def send(self, commands: Sequence[Command]) -> None:
        self.sent += commands


class CountingStore(Store):
    """Counts round trips."""

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self.round_trips = 0

    def _send(self, wanted: Sequence[Step[Any]]) -> list[Any]:
        self.round_trips += 1
        return super()._send(wanted)


@dataclass
class World:
    """The core with a fake launcher on a real or fake store."""

    store: Store
    launcher: FakeLauncher
    commands: RecordedCommands
    deps: Deps
    woken: list[int]

    def add_idle(self, worker: str, version: str = "v1", pool: str = "default") -> None:
        answer = self.store.one(steps.pool_beat(pool, worker, f"task-{worker}", version, "", "host"))
        assert answer == ("idle",), answer

    def next_claim(self) -> Claim:
        delivery = self.deps.channel.receive(1)
        assert delivery is not None, "no claim was sent"
        return Claim.from_json(delivery.body)


def world(store: Store, clock: Clock | None = None, channel: Any = None) -> World:
    clock = clock or SystemClock()
    launcher, commands, woken = FakeLauncher(clock), RecordedCommands(), []
    deps = Deps(
        store=store,
        launcher=launcher,
        channel=channel or ValkeyChannel(store.client, "default"),
        commands=commands,
        clock=clock,
        pool="default",
        version="v1",
        wake_pool=lambda: woken.append(1),
    )
    return World(store, launcher, commands, deps, woken)


def assignment(begin: steps.Begin, user: str = "u1", via: Via = Via.COLD) -> Assignment:
    return Assignment(
        user, begin.epoch, via, Cause.START, begin.issued_at_ms, begin.command_id, begin.credentials_ref
    )
