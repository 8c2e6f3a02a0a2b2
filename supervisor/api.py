"""The supervisor's workers as a `FleetSource`: the product's routes and page, another source of data.

A key of workers.yml is the user of the API. There is no warm pool and there are no queues on one host, and
the workers' output is the supervisor's own: what asks for those is refused with a reason.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial

from api import bulk, paging
from api.source import (
    Accepted,
    BulkAccepted,
    BulkOrder,
    DeadLetter,
    Event,
    Explanation,
    LogPage,
    NextStep,
    NotFound,
    Page,
    PoolView,
    QueueView,
    StartRecord,
    Timeline,
    Transition,
    WorkerQuery,
    WorkerView,
)
from muster.blueprint import HISTORY_LENGTH
from muster.clock import Clock
from muster.commands import Action
from muster.errors import Refused
from muster.model import Phase, Want
from muster.store import Store, command, text
from supervisor.fleet import Fleet, UnknownKey, WorkerStatus
from worker.cycle_keys import Keys

IDEMPOTENCY_S = 24 * 3600
_LOOK_S = 0.2  # how often a watcher looks for news; it is a look into memory

_WANT = {Phase.STOPPED: Want.STOPPED, Phase.FAILED: Want.FAILED}


class SupervisorSource:
    """One supervisor's fleet. Safe to use from many threads."""

    def __init__(self, fleet: Fleet, store: Store, keys: Keys, clock: Clock) -> None:
        self._fleet, self._store, self._keys, self._clock = fleet, store, keys, clock
        self._accepting = threading.Lock()

    async def command(
        self,
        user_id: str,
        action: Action,
        *,
        idempotency_key: str = "",
        credentials_ref: str = "",
        reason: str = "",
    ) -> Accepted:
        """Done at once, so the order of acceptance is the order of effect. A repeated key does nothing."""
        if credentials_ref:
            raise Refused("credentials_ref: workers of one host get their settings from workers.yml")
        return await asyncio.to_thread(self._carry_out, user_id, action, idempotency_key, reason)

    def _carry_out(self, user_id: str, action: Action, idempotency_key: str, reason: str) -> Accepted:
        self._one(user_id)
        name = f"{self._keys.prefix}:worker:{user_id}:command:{idempotency_key}"
        content = f"{action.value} {reason}"
        with self._accepting:
            if idempotency_key and (first := self._first(name, content)):
                return Accepted(first, repeated=True)
            match action:
                case Action.START:
                    self._fleet.start(user_id)
                case Action.STOP:
                    self._fleet.stop(user_id)
                case Action.RESTART:
                    self._fleet.restart(user_id)
            # Remembered after it was done: one that failed must be tried again by its repeat.
            accepted = Accepted(uuid.uuid4().hex, repeated=False)
            if idempotency_key:
                value = f"{accepted.command_id} {content}"
                self._store.one(command("SET", name, value, "EX", IDEMPOTENCY_S, parse=bool))
            return accepted

    async def worker(self, user_id: str) -> WorkerView | None:
        try:
            return self._view(await asyncio.to_thread(self._fleet.status_one, user_id))
        except UnknownKey:
            return None

    def workers(self, query: WorkerQuery) -> Page:
        views = [self._view(status) for status in self._fleet.status_all()]
        rows, next_cursor, total = paging.page(views, query)
        return Page(rows, next_cursor, total, _counts(views))

    def counts(self) -> Mapping[Phase, int]:
        return _counts([self._view(status) for status in self._fleet.status_all()])

    def explain(self, user_id: str) -> Explanation:
        status = self._one(user_id)
        history = [
            Transition(_moment(entry.at), entry.event, 0, entry.detail, "")
            for entry in self._fleet.history(user_id, HISTORY_LENGTH)
        ]
        return Explanation(self._view(status), history, self._next(status))

    def timeline(self, user_id: str) -> Timeline:
        told = self.explain(user_id)
        return Timeline(told.worker, told.history[::-1], told.next, None, None, None, None, {})

    def starts(self, limit: int) -> Sequence[StartRecord]:  # noqa: ARG002 - the port's
        return []  # a supervisor starts processes; there is nothing warm to compare

    def matching(self, phase: Phase | None, q: str) -> Sequence[str]:
        views = [self._view(status) for status in self._fleet.status_all()]
        return sorted(worker.user_id for _, worker in paging.order(views, WorkerQuery(phase, q)))

    def bulk(self, order: BulkOrder, idempotency_key: str) -> BulkAccepted:
        return bulk.accept(
            self._store,
            order,
            idempotency_key,
            partial(self.matching, order.phase, order.q),
            self._command_all,
        )

    def _command_all(self, user_ids: Sequence[str], order: BulkOrder, idempotency_key: str) -> None:
        for user_id in user_ids:
            self._carry_out(user_id, order.action, idempotency_key, order.reason)

    def pool(self) -> PoolView:
        return PoolView(name="none", target=0, idle=0, outstanding=0, launching=0, version=None)

    def set_pool_target(self, target: int) -> PoolView:
        raise Refused(f"target {target}: a supervisor has no warm pool; every worker is in workers.yml")

    def queues(self) -> Sequence[QueueView]:
        return []

    def dead_letters(self, queue: str, limit: int = 50) -> Sequence[DeadLetter]:  # noqa: ARG002 - the port's
        raise _no_queue(queue)

    def redrive(self, queue: str, message_id: str | None = None) -> int:  # noqa: ARG002 - the port's
        raise _no_queue(queue)

    def purge(self, queue: str) -> int:
        raise _no_queue(queue)

    def logs(self, user_id: str, lines: int, cursor: str = "") -> LogPage:  # noqa: ARG002 - the port's
        raise Refused(f"the output of {user_id} goes where the supervisor's own output goes; look there")

    async def events(self, idle_s: float) -> AsyncIterator[Event | None]:
        number, _ = self._fleet.news(None)
        yield None
        quiet = 0.0
        while True:
            number, news = await asyncio.to_thread(self._fleet.news, number)
            if news is None:
                return
            for entry in news:
                yield Event(entry.key, entry.event, 0, _moment(entry.at), entry.detail)
            quiet = 0.0 if news else quiet + _LOOK_S
            if quiet >= idle_s:
                quiet = 0.0
                yield None
            await asyncio.sleep(_LOOK_S)

    def check(self) -> None:
        self._store.one(command("EXISTS", self._keys.supervisor_lock, parse=int))

    def reload(self) -> Mapping[Phase, int]:
        """Read workers.yml again; Refused, with the reason, for a broken one."""
        return _counts([self._view(status) for status in self._fleet.reload()])

    def _one(self, user_id: str) -> WorkerStatus:
        try:
            return self._fleet.status_one(user_id)
        except UnknownKey as unknown:
            raise NotFound(str(unknown)) from unknown

    def _first(self, name: str, content: str) -> str | None:
        """The id of the command this key was used for before; None if it was not."""
        known = self._store.one(
            command("GET", name, parse=lambda value: None if value is None else text(value))
        )
        if known is None:
            return None
        first, _, remembered = known.partition(" ")
        if remembered != content:
            raise Refused("Idempotency-Key: already used for another command; take a new key for a new one")
        return first

    def _view(self, status: WorkerStatus) -> WorkerView:
        now = self._clock.now()
        return WorkerView(
            user_id=status.key,
            want=_WANT.get(status.phase, Want.RUNNING),
            phase=status.phase,
            via=None,
            epoch=0,
            task_id=None if status.pid is None else str(status.pid),
            pid=status.pid,
            heartbeat_age_s=status.heartbeat_age,
            since=None if status.age is None else _moment(now - status.age),
            start_latency_ms=None,
            failures=status.failures,
            reason=_reason(status),
            version=None,
            restarts=status.restarts,
            backoff_s=status.backoff,
            next_try_at=None if status.next_try_in is None else _moment(now + status.next_try_in),
        )

    def _next(self, status: WorkerStatus) -> NextStep:
        now = _moment(self._clock.now())
        if status.next_try_in is not None:
            due = now + timedelta(seconds=status.next_try_in)
            return NextStep("restart", f"backing off for {status.backoff:g} s", due, due)
        if status.phase in (Phase.STARTING, Phase.DRAINING):
            return NextStep("wait", status.why, now, None)
        return NextStep("none", status.why, None, None)


def _reason(status: WorkerStatus) -> str | None:
    """Why it is not what was asked for; for one that is, the error of its last cycle."""
    if status.phase is Phase.READY:
        return status.error
    told = [status.why, f"last exit: {status.last_exit}" if status.last_exit else ""]
    if status.next_try_in is not None:
        told.append(f"next try in {status.next_try_in:.0f} s, restarts so far: {status.restarts}")
    return "; ".join(part for part in told if part)


def _counts(views: Sequence[WorkerView]) -> Mapping[Phase, int]:
    seen = Counter(view.phase for view in views)
    return {phase: seen[phase] for phase in Phase}


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _no_queue(name: str) -> NotFound:
    return NotFound(f"there is no queue {name}: a supervisor has none")
