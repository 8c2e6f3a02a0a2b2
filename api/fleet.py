"""`FleetSource` on the core: commands go to worker-control.fifo, everything else is read from Valkey."""

from __future__ import annotations

import hashlib
import json
import threading
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from api import bulk, logs
from api.convoy import Convoy
from api.events import Feed
from api.queues import Queues, with_dead_letters
from api.roster import Roster
from api.source import (
    Accepted,
    BulkAccepted,
    BulkOrder,
    DeadLetter,
    Event,
    Explanation,
    LogPage,
    NotFound,
    Page,
    PoolView,
    QueueView,
    StartRecord,
    Timeline,
    WorkerQuery,
    WorkerView,
)
from api.together import Together
from api.views import explanation, known, start_record, timeline, worker_view
from muster import keys, steps
from muster.blueprint import FN_POOL_MANAGER, SQS_BATCH_MAX, STARTS_KEPT, WORKER_CONTROL
from muster.clock import Clock, SystemClock
from muster.commands import Action, Command, from_ms
from muster.errors import Refused, TryLater
from muster.model import Cause, Phase, UserView
from muster.queues import SqsCommands
from muster.settings import Settings
from muster.store import Step, Store, command, tagged
from muster.traces import Spans, trace_of

_LUA = Path(__file__).parent / "lua"
IDEMPOTENCY_S = 24 * 3600
_ACCEPT_CHUNK = 500
#: Calls to the queue at once, of a command for many users: a call takes ten of them and some milliseconds.
_SENDERS = 8
#: Calls to the queue at once, of commands for one user each: one that hangs does not hold up the rest.
_TRIPS = 2
#: The last starts are read again after this.
_STARTS_AGE_S = 2.0


class Fleet:
    """The fleet of one deployment. Safe to use from many threads.

    `logs` is the folder of the process launcher's logs, where there is one.
    """

    def __init__(
        self,
        store: Store,
        sqs: Any,
        settings: Settings,
        *,
        logs: Path | None = None,
        clock: Clock | None = None,
        commands: SqsCommands | None = None,
    ) -> None:
        self._store = store
        #: Reads of single workers travel in crowds; the door's own questions travel with them.
        self.together = Together(store)
        self._settings = settings
        self._logs = logs
        self._clock = clock or SystemClock()
        self._commands = commands or SqsCommands(sqs, settings.queue_worker_control)
        self._sending = Convoy(self._send, most=SQS_BATCH_MAX, trips=_TRIPS)
        self._queues = Queues(sqs, settings)
        self._roster = Roster(store, self._clock)
        self._feed = Feed(store.client, self._roster.touch)
        self._starts_lock = threading.Lock()
        self._starts: Sequence[StartRecord] = ()
        self._starts_at = float("-inf")
        self._spans = Spans(settings.otlp_endpoint, "muster-api")

    async def command(
        self,
        user_id: str,
        action: Action,
        *,
        idempotency_key: str = "",
        credentials_ref: str = "",
        reason: str = "",
    ) -> Accepted:
        """Remember, then send, always in this order and always both.

        A crash in between leaves a key whose command was never sent; the repeat sends it. A repeat of one
        that was sent sends it again, which is harmless: within five minutes the queue drops it by its
        deduplication id, and after that the core sees the same command id at the same moment and does
        nothing, or finds it superseded.
        """
        began = self._clock.now()
        asked = {"action": action.value, "credentials_ref": credentials_ref, "reason": reason}
        # Validated before it is remembered: a key must never hold a command that cannot be sent.
        fresh = _command(user_id, asked | {"command_id": uuid.uuid4().hex}, issued_at_ms=0)
        tag, issued_at, *first = await self.together.one(_accept(fresh, asked, idempotency_key))
        if tag == "repeated":
            remembered = json.loads(first[0])
            if {name: remembered[name] for name in asked} != asked:
                raise Refused(
                    f"Idempotency-Key: already used for another {remembered['action']} of this user; "
                    "take a new key for a new command"
                )
        else:
            remembered = asked | {"command_id": fresh.command_id}
        sent = _command(user_id, remembered, issued_at_ms=int(issued_at))
        await self._sending.join(sent)
        self._spans.add(trace_of(sent.command_id), "api", began, self._clock.now(), action=action.value)
        self._spans.flush_soon()
        return Accepted(sent.command_id, tag == "repeated")

    def _send(self, commands: Sequence[Command]) -> Sequence[None]:
        self._commands.send(commands)
        self._nudge(WORKER_CONTROL.name)
        return [None] * len(commands)

    async def worker(self, user_id: str) -> WorkerView | None:
        view = await self.together.one(steps.read_user(user_id))
        return worker_view(view) if known(view) else None

    def workers(self, query: WorkerQuery) -> Page:
        return self._roster.page(query)

    def counts(self) -> Mapping[Phase, int]:
        return self._roster.counts()

    def matching(self, phase: Phase | None, q: str) -> Sequence[str]:
        return self._roster.matching(WorkerQuery(phase, q))

    def bulk(self, order: BulkOrder, idempotency_key: str) -> BulkAccepted:
        return bulk.accept(
            self._store,
            order,
            idempotency_key,
            partial(self.matching, order.phase, order.q),
            self._command_all,
        )

    def _command_all(self, user_ids: Sequence[str], order: BulkOrder, idempotency_key: str) -> None:
        """As `command` for each of them, in few calls: remembered, then sent."""
        asked = {"action": order.action.value, "credentials_ref": "", "reason": order.reason}
        for start in range(0, len(user_ids), _ACCEPT_CHUNK):
            fresh = [
                _command(user, asked | {"command_id": uuid.uuid4().hex}, issued_at_ms=0)
                for user in user_ids[start : start + _ACCEPT_CHUNK]
            ]
            answers = self._store.run(*(_accept(command, asked, idempotency_key) for command in fresh))
            commands = []
            for new, (tag, issued_at, *first) in zip(fresh, answers, strict=True):
                fields = json.loads(first[0]) if tag == "repeated" else asked | {"command_id": new.command_id}
                commands.append(_command(new.user_id, fields, issued_at_ms=int(issued_at)))
            tens = [commands[at : at + SQS_BATCH_MAX] for at in range(0, len(commands), SQS_BATCH_MAX)]
            with ThreadPoolExecutor(_SENDERS) as senders:
                list(senders.map(self._send, tens))

    def explain(self, user_id: str) -> Explanation:
        return explanation(self._known(user_id, history=True))

    def timeline(self, user_id: str) -> Timeline:
        return timeline(self._known(user_id, history=True))

    def starts(self, limit: int) -> Sequence[StartRecord]:
        with self._starts_lock:
            if self._clock.monotonic() >= self._starts_at + _STARTS_AGE_S:
                self._starts = self._read_starts()
                self._starts_at = self._clock.monotonic()
            return self._starts[:limit]

    def _read_starts(self) -> Sequence[StartRecord]:
        """The starts, and the time lines of the repaired, which say when the loss was seen."""
        entries = self._store.one(steps.recent_starts(STARTS_KEPT))
        repaired = sorted({entry.user for entry in entries if entry.cause == Cause.REPAIR})
        lines = self._store.run(*(steps.history(user) for user in repaired))
        histories = dict(zip(repaired, lines, strict=True))
        return [start_record(entry, histories.get(entry.user, ())) for entry in entries]

    def pool(self) -> PoolView:
        return self._store.one(self._read_pool())

    def set_pool_target(self, target: int) -> PoolView:
        wanted = command("HSET", keys.pool_config(self._settings.pool), "wanted", target, parse=int)
        pool: PoolView = self._store.run(wanted, self._read_pool())[1]
        self._nudge(FN_POOL_MANAGER.name)
        return pool

    def queues(self) -> Sequence[QueueView]:
        return self._queues.views()

    def dead_letters(self, queue: str, limit: int = 50) -> Sequence[DeadLetter]:
        return self._queues.dead_letters(queue, limit)

    def redrive(self, queue: str, message_id: str | None = None) -> int:
        moved = self._queues.redrive(queue, message_id)
        self._nudge(with_dead_letters(queue).name)
        return moved

    def purge(self, queue: str) -> int:
        return self._queues.purge(queue)

    def logs(self, user_id: str, lines: int, cursor: str = "") -> LogPage:
        if self._logs is None:
            raise Refused("the logs of this deployment are in its log service, one stream per task")
        view = worker_view(self._known(user_id))
        if view.task_id is None:
            raise NotFound(f"{user_id} has no task, so no log; 'explain' says why")
        return logs.read(self._logs, view.task_id, lines, cursor)

    def events(self, idle_s: float) -> AsyncIterator[Event | None]:
        return self._feed.listen(idle_s)

    def check(self) -> None:
        self._store.one(command("EXISTS", keys.SWEEP_RUN, parse=int))
        self._queues.check()

    def close(self) -> None:
        """End the event streams, so that the server can end; the clients stay their owner's."""
        self._feed.close()

    def _nudge(self, name: str) -> None:
        """Tell the engine of one machine to look at a queue, or run a function, now. Only saves a moment:
        what was sent is safe in its queue already, and every function has its schedule."""
        with suppress(TryLater):
            self._store.one(command("PUBLISH", keys.NUDGE, name, parse=int))

    def _known(self, user_id: str, *, history: bool = False) -> UserView:
        view = self._store.one(steps.read_user(user_id, history=history))
        if not known(view):
            raise NotFound(f"nobody ever asked for {user_id}; start it first")
        return view

    def _read_pool(self) -> Step[PoolView]:
        name = self._settings.pool

        def parse(reply: Any) -> PoolView:
            idle, outstanding, launching, wanted, target, version = tagged(reply)
            return PoolView(
                name=name,
                target=int(wanted or target or self._settings.pool_target),
                idle=int(idle),
                outstanding=int(outstanding),
                launching=int(launching),
                version=version or None,
            )

        counted = (
            keys.pool_idle(name),
            keys.pool_outstanding(name),
            keys.pool_launching(name),
            keys.pool_config(name),
        )
        return Step(_LUA / "read_pool.lua", counted, (), parse)


def _accept(fresh: Command, asked: Mapping[str, str], idempotency_key: str) -> Step[tuple[str, ...]]:
    # Without a key the command id stands in: nobody else has it, and nothing is remembered under it.
    hashed = hashlib.sha256((idempotency_key or fresh.command_id).encode()).hexdigest()
    key = f"api:idempotency:{{{fresh.user_id}}}:{hashed}"
    body = json.dumps({**asked, "command_id": fresh.command_id})
    keep_s = IDEMPOTENCY_S if idempotency_key else 0
    return Step(_LUA / "accept_command.lua", (key,), (body, keep_s), tagged)


def _command(user_id: str, fields: Mapping[str, str], *, issued_at_ms: int) -> Command:
    return Command(user_id=user_id, issued_at=from_ms(issued_at_ms), **fields)  # type: ignore[arg-type]
