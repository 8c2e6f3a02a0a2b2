"""Small worlds for tests of the core: a store, a fake launcher, recorded commands, workers by hand."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import fakeredis
import pytest

from muster import blueprint, keys, steps
from muster.claims import Claim, Delivery, ValkeyChannel
from muster.clock import Clock, FakeClock, SystemClock
from muster.commands import Action, Command
from muster.deps import Deps
from muster.launchers.fake import FakeLauncher
from muster.lifecycle import Result, apply
from muster.maintenance import Batch, BatchReport, SweepReport, sweep, sweep_batch
from muster.model import Assignment, Cause, UserView, Via
from muster.store import Step, Store
from worker.exits import Exit
from worker.heart import Heart
from worker.lease import Lease
from worker.life import AwaitClaim, Effect, Me, cold_start, pool_wait
from worker.session import Context

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

    def apply(self, *commands: Command) -> list[Result]:
        return apply(commands, self.deps)

    def user(self, user: str = "u1") -> UserView:
        return self.store.one(steps.read_user(user, history=True))

    def sweep(self, run_id: str) -> tuple[SweepReport, list[BatchReport]]:
        """A whole sweep; its batches run one after the other, as soon as they are invoked."""
        reports: list[BatchReport] = []

        def invoke(batches: Sequence[Batch]) -> None:
            reports.extend(sweep_batch(self.deps, batch) for batch in batches)

        return sweep(self.deps, run_id, invoke), reports

    def repairs(self) -> list[Command]:
        """What maintenance has sent since the last call."""
        sent, self.commands.sent = self.commands.sent, []
        return sent

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


class VirtualTime(FakeClock):
    """One clock for the code under test and for fakeredis, which follows `time.time`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(1_800_000_000.0)
        monkeypatch.setattr(time, "time", self.now)


def virtual_world(monkeypatch: pytest.MonkeyPatch) -> tuple[World, VirtualTime]:
    """A world on fakeredis in which time moves only when told: marks, leases and backoffs run out by it.

    The index has two buckets: 256 empty ones would be most of what a sweep costs there.
    """
    for module in (blueprint, keys):
        monkeypatch.setattr(module, "INDEX_BUCKETS", 2)
    clock = VirtualTime(monkeypatch)
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
    return world(Store(client), clock), clock


@dataclass
class HandWorker:
    """The worker's own life and heart, moved on by the test instead of by threads and real time."""

    store: Store
    clock: Clock
    worker_id: str
    task_id: str = ""
    version: str = "v1"
    launch_id: str = ""
    told_to_stop: bool = False
    life: Generator[Effect, Any, Assignment | Exit] | None = None
    effect: Effect | None = None
    heart: Heart | None = None
    exit: Exit | None = None
    killed_by_itself: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log: list[str] = []
        self.lease = Lease(self.clock)
        self.stopping = threading.Event()
        self.me = Me(
            worker_id=self.worker_id,
            task_id=self.task_id or f"task-{self.worker_id}",
            version=self.version,
            pool="default",
            launch_id=self.launch_id,
            host="host",
            store=self.store,
            clock=self.clock,
            lease=self.lease,
            stopping=lambda: self.told_to_stop,
            log=self.log.append,
        )

    def start_cold(self, given: Assignment) -> HandWorker:
        self.life = cold_start(self.me, given)
        return self.go_on()

    def start_in_pool(self) -> HandWorker:
        self.life = pool_wait(self.me)
        return self.go_on()

    def go_on(self, delivery: Delivery | None = None, error: Exception | None = None) -> HandWorker:
        """Answer what the life waits for, up to its next wait or its end."""
        assert self.life is not None
        try:
            if error is not None:
                self.effect = self.life.throw(error)
            else:
                self.effect = self.life.send(delivery if self.effect is not None else None)
        except StopIteration as end:
            self.life, self.effect = None, None
            if isinstance(end.value, Exit):
                self.exit = end.value
            else:
                self._serve(end.value)
        return self

    def _serve(self, given: Assignment) -> None:
        self.given = given
        self.ctx = Context(given, self.lease, self.stopping, beat_now=lambda: None, state={"phase": "ready"})
        self.heart = Heart(self.me, self.ctx, wait=lambda _: None, die=self.killed_by_itself.append)
        self.heart.ready = True

    def leave(self, why: str = "drained") -> Exit:
        """What `serve` does at its end."""
        assert self.heart is not None
        ended = self.lease.ended
        self.heart.stop()
        self.store.one(steps.drop_mark(self.given.user, self.given.epoch, self.worker_id, ended or why))
        self.exit = Exit.DONE
        if ended:
            self.exit = Exit.FENCED if ended.startswith("fenced") else Exit.LEASE_LOST
        return self.exit

    def step(self, next_delivery: Callable[[], Delivery | None]) -> None:
        """One move: towards the mark, or one beat, or the way out."""
        if self.exit is not None:
            return
        if self.heart is None:
            waits = isinstance(self.effect, AwaitClaim) and not self.told_to_stop
            self.go_on(next_delivery() if waits else None)
            return
        if not self.told_to_stop:
            self.heart.beat()
        if self.told_to_stop or self.stopping.is_set():
            self.leave()


def pop_claim(client: Any, pool: str = "default") -> Delivery | None:
    """The next claim of the Valkey channel without waiting; fakeredis cannot block."""
    claims = keys.pool_claims(pool)
    body = client.lpop(claims)
    return None if body is None else Delivery(body, lambda: None, lambda: client.lpush(claims, body))


def assignment(begin: steps.Begin, user: str = "u1", via: Via = Via.COLD) -> Assignment:
    return Assignment(
        user, begin.epoch, via, Cause.START, begin.issued_at_ms, begin.command_id, begin.credentials_ref
    )
