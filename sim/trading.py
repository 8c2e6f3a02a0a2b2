"""Trading worlds: people who order and cancel, the real broker session in every worker, and fill checks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, cast

from muster import keys
from muster.blueprint import ORDER_TASKS, ORDER_TASKS_DLQ
from muster.brokers.port import Broker, NewOrder, Side
from muster.errors import TryLater
from muster.model import Want
from muster.order_steps import OrderRecord, accept_order, cancel_order, read_order
from muster.orders import FillCheck, OrderDeps
from muster.store import Step, Store
from sim.audit import view_of
from sim.broker_world import BrokerWorld
from sim.loop import Actor
from sim.plan import Wish
from sim.sqs_world import Message, SimQueue
from worker.broker import BrokerSession, Parts, SqsChecks
from worker.session import Context

if TYPE_CHECKING:
    from sim.workers import SimWorker
    from sim.world import World

#: A person whose request was not answered asks again so often, with the same idempotency key.
_TRIES = 3


@dataclass(slots=True)
class Asked:
    """One order that a person wanted. Its quantity is its own: the book knows it again under any id."""

    user: str
    order: NewOrder
    accepted_at: float | None = None  #: when the person was told so


class Trading:
    """What a trading world has more than others."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.broker = BrokerWorld(world)
        self.asked: dict[str, Asked] = {}
        self.dead: set[str] = set()  #: orders whose check is in the dead-letter queue
        self._numbers = itertools.count(1)
        self._planned: set[str] = set()

    def grant(self, wish: Wish) -> None:
        """A person orders, or cancels the last order."""
        body = self._order if wish.action == "order" else self._cancel
        self.world.loop.spawn(Actor(f"person-{wish.user}", "person"), partial(body, wish.user))

    def _order(self, user: str) -> None:
        number = next(self._numbers)
        order = NewOrder(f"o{number}", "SIM", Side.BUY, Decimal(2 * number))
        asked = self.asked[order.client_order_id] = Asked(user, order)
        answer = self._try(accept_order(user, order, f"key-{number}"))
        if answer and answer[0] in ("accepted", "repeated"):
            asked.accepted_at = self.world.loop.now
        self.world.trace("person", "order", user, order.client_order_id, str(answer))

    def _cancel(self, user: str) -> None:
        mine = [asked for asked in self.asked.values() if asked.user == user]
        if mine:
            answer = self._try(cancel_order(user, mine[-1].order.client_order_id))
            self.world.trace("person", "cancel", user, mine[-1].order.client_order_id, str(answer))

    def _try(self, step: Step[tuple[str, ...]]) -> tuple[str, ...]:
        for _ in range(_TRIES):
            try:
                return self.world.store.one(step)
            except TryLater:
                self.world.loop.sleep(2.0)
        return ()

    def session(self, worker: SimWorker, trouble: str) -> TradingSession:
        return TradingSession(self, worker, trouble)

    def parts(self, worker: SimWorker) -> Parts:
        return Parts(
            store=Store(self.world.client),
            credentials=self.broker.credentials,
            connect=cast(Callable[[Any], Broker], self.broker.connect),
            send_checks=SqsChecks(lambda: self.world.sqs, ORDER_TASKS.name),
            clock=worker.clock,
        )

    def deps(self) -> OrderDeps:
        """The outside world of order_tasks."""
        connect = cast(Callable[[Any], Broker], self.broker.connect)
        return OrderDeps(self.world.store, self.broker.credentials, connect, self._plan)

    def _plan(self, check: FillCheck, pause: timedelta) -> None:
        """A one-shot schedule; a second one of the same name is refused."""
        name = f"{check.user_id}|{check.order_id}|{check.look}"

        def fire() -> None:
            self._planned.discard(name)
            body = check.body()
            dedup = sha256(body.encode()).hexdigest()
            self.world.sqs.queues[ORDER_TASKS.name].put(body, check.order_id, dedup)

        def plan() -> None:
            if name not in self._planned:
                self._planned.add(name)
                self.world.loop.after(pause.total_seconds(), fire)

        self.world.effect("scheduler", "plan", plan)

    def dead_letter(self, queue: SimQueue, message: Message) -> None:
        if queue.spec.name in (ORDER_TASKS.name, ORDER_TASKS_DLQ.name):
            self.dead.add(str(json.loads(message.body)["order_id"]))

    def record(self, asked: Asked) -> OrderRecord | None:
        """What anybody who asks is told of this order."""
        step = read_order(asked.user, asked.order.client_order_id)
        found = self.world.store_world.backend.peek(keys.order(asked.user, asked.order.client_order_id))
        return step.parse(found or {})

    def judged(self) -> Sequence[Asked]:
        """The orders that must come to one truth: accepted, after the last loss of acknowledged writes."""
        since = max((until for _, until in self.world.store_world.lost), default=0.0)
        return [a for a in self.asked.values() if a.accepted_at is not None and a.accepted_at > since + 1.0]

    def open_end(self, asked: Asked) -> str:
        """Why this order has no truth yet, or nothing. A user whom nobody wants running has no worker that
        could have it checked; then the record says openly that nobody has."""
        record = self.record(asked)
        if record is None:
            return "has no record"
        if record.verified == "verified" or asked.order.client_order_id in self.dead:
            return ""
        if view_of(self.world, asked.user).want is not Want.RUNNING:
            return ""
        return f"is {record.status}, {record.verified}"

    def gap(self) -> str:
        for asked in self.judged():
            if why := self.open_end(asked):
                return f"order {asked.order.client_order_id} of {asked.user} {why}"
        return ""


class TradingSession:
    """The real broker session, with the troubles that other sessions have."""

    def __init__(self, trading: Trading, worker: SimWorker, trouble: str) -> None:
        self._worker = worker
        self._trouble = trouble
        self._trading = trading
        self._real = BrokerSession(partial(trading.parts, worker))

    def open(self, ctx: Context) -> None:
        if self._trouble == "fails":
            raise ConnectionError("the broker hung up")
        if self._trouble == "refused":
            user, now = ctx.given.user, self._worker.world.loop.now
            self._trading.broker.revoked_until[user] = now + 5.0
        self._real.open(ctx)

    def run(self, ctx: Context) -> None:
        self._real.run(ctx)

    def close(self, ctx: Context) -> None:
        self._worker.closed = True  # no order is sent after this, whatever the lease says
        self._real.close(ctx)
