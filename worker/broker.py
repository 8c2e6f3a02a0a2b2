"""A session that trades: the user's broker connection, its open orders, and the orders from its inbox.

Two threads: the worker's own serves the inbox, the other hears the broker's stream of updates. Both write
what they learn with the same step, which only moves forward, so they need not know of each other.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from muster.aws import aws
from muster.brokers.connect import connect
from muster.brokers.port import BadCredentials, Broker, BrokerAway, Credentials, Opened, Order, Update
from muster.clients import open_ahead, valkey_client
from muster.clock import Clock, SystemClock
from muster.errors import TryLater, aws_errors
from muster.order_steps import open_order_ids, report_order
from muster.settings import Settings
from muster.store import Step, Store
from worker.inbox import Check, Inbox
from worker.link import Link, Stopping, say
from worker.session import Context, SessionRefused

#: How long one look at the stream waits; it is also how long the listener may take to notice its end.
_LISTEN = timedelta(seconds=1)
#: A goodbye that takes longer is cut off: the mark must be dropped within the drain.
_CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class Parts:
    """The outside world of a broker session."""

    store: Store
    credentials: Callable[[str], Credentials]
    connect: Callable[[Credentials], Broker]
    send_checks: Callable[[Sequence[Check]], None]
    clock: Clock
    #: Opens the connections that every user needs, before there is one.
    open_ahead: Callable[[], None] = lambda: None


#: A service that hangs must not hold the orders behind it.
_READ_S = 3.0


class BrokerSession:
    """`MUSTER_SESSION=worker.broker:BrokerSession`. Ready means: stream open, open orders known."""

    def __init__(self, build: Callable[[], Parts] | None = None) -> None:
        self._build = build or _from_environment
        self._parts: Parts | None = None
        self._broker: Broker | None = None
        self._listener: threading.Thread | None = None
        self._opened = threading.Event()
        self._failure: Exception | None = None

    def preload(self) -> None:
        """Clients and connections are much of a start's time, and a waiting worker has that time. It has no
        credentials: it does not know yet whose it will need."""
        import worker.preload  # noqa: F401 - for the side effect
        from worker.rehearsal import rehearse, rehearse_store

        self._parts = self._build()
        self._parts.open_ahead()
        rehearse()
        rehearse_store(self._parts.store)

    def open(self, ctx: Context) -> None:
        ctx.lease.require()
        reference = ctx.given.credentials_ref
        if not reference:
            raise SessionRefused("this user was started without credentials_ref; start it again with one")
        parts = self._parts = self._parts or self._build()
        self._user = ctx.given.user
        self._link = Link(ctx, parts.clock)
        try:
            self._broker = self._link.patiently("broker", lambda: parts.connect(parts.credentials(reference)))
        except Stopping:
            return
        self._inbox = Inbox(ctx, parts.store, self._broker, parts.send_checks, self._link, parts.clock)
        # Here, not in the listener's thread: nobody has anything else to do until the stream is open.
        try:
            while not self._opened.is_set() and not ctx.stopping.is_set():
                self._hear(self._broker)
        except Stopping:
            return
        except BadCredentials as refused:
            raise SessionRefused(str(refused)) from refused
        self._listener = threading.Thread(
            target=self._listen, args=(ctx, self._broker), name="broker-stream", daemon=True
        )
        self._listener.start()

    def run(self, ctx: Context) -> None:
        if self._broker is None:
            return  # told to stop before there was a connection
        try:
            while not ctx.stopping.is_set():
                self._raise_failure()
                self._inbox.serve()
        except Stopping as told:
            say(str(told))
        try:
            self._inbox.send_checks()
        except Stopping as told:
            say(f"{told}; the successor settles what is left")

    def close(self, ctx: Context) -> None:
        ctx.stopping.set()  # also after an error: the listener waits on it
        if self._broker is not None:
            self._broker.close()
        if self._listener is not None:
            self._listener.join(_CLOSE_S)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _listen(self, ctx: Context, broker: Broker) -> None:
        """Hear the stream until told to stop. What goes wrong here is raised by the worker's own thread."""
        try:
            while not ctx.stopping.is_set():
                self._hear(broker)
        except Stopping:
            return
        except BadCredentials as refused:
            self._failure = SessionRefused(str(refused))
        except Exception as failed:  # noqa: BLE001 - a thread's error has nobody else to go to
            self._failure = failed

    def _hear(self, broker: Broker) -> None:
        try:
            said = broker.updates(_LISTEN)
        except BrokerAway as away:
            self._link.away("stream", str(away))  # it pauses by itself: only ask again
            return
        match said:
            case Opened():
                self._catch_up(broker)
                self._link.back("stream")
                self._opened.set()
            case Update(order=order):
                self._report([order])

    def _catch_up(self, broker: Broker) -> None:
        """What happened while nobody listened: the orders that are open there, and those open only here."""
        there = {order.client_order_id: order for order in self._asked(broker.open_orders)}
        here = self._stored(open_order_ids(self._user))[0]
        for order_id in sorted(here - there.keys()):
            ended = self._asked(partial(broker.get, order_id))
            if ended is not None:
                there[order_id] = ended
        self._report(list(there.values()))

    def _report(self, orders: Sequence[Order]) -> None:
        answers = self._stored(*(report_order(self._user, order) for order in orders))
        for order, answer in zip(orders, answers, strict=True):
            self._link.recorded(order.client_order_id, answer)

    def _asked(self, call: Callable[[], Any]) -> Any:
        return self._link.patiently("broker", call)

    def _stored(self, *steps: Step[Any]) -> list[Any]:
        assert self._parts is not None  # built before the first thread that may ask
        store = self._parts.store
        return self._link.patiently("store", lambda: store.run(*steps))


def _from_environment() -> Parts:
    """The parts of a real worker, after its claim."""
    from muster.vault import secrets_reader

    settings = Settings.from_env(os.environ)
    store = Store(valkey_client(settings))
    secrets = aws(settings, "secretsmanager", read_timeout_s=_READ_S)

    def ahead() -> None:
        open_ahead(store.client, 1)
        secrets.open_ahead()

    return Parts(
        store=store,
        credentials=secrets_reader(secrets),
        connect=connect,
        send_checks=SqsChecks(
            lambda: aws(settings, "sqs", read_timeout_s=_READ_S), settings.queue_order_tasks
        ),
        clock=SystemClock(),
        open_ahead=ahead,
    )


class SqsChecks:
    """Fill checks on order-tasks.fifo, one group per order. The client is made for the first one."""

    def __init__(self, make_client: Callable[[], Any], queue_url: str) -> None:
        self._make_client = make_client
        self._url = queue_url
        self._sqs: Any = None

    def __call__(self, checks: Sequence[Check]) -> None:
        entries = [
            {
                "Id": str(number),
                "MessageBody": check.body,
                "MessageGroupId": check.order_id,
                "MessageDeduplicationId": check.dedup_id,
            }
            for number, check in enumerate(checks)
        ]
        try:
            self._sqs = self._sqs or self._make_client()
            answer = self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
        except aws_errors() as away:
            raise TryLater(f"order-tasks.fifo took no check ({away})") from away
        if failed := answer.get("Failed"):
            raise TryLater(f"order-tasks.fifo refused {len(failed)} checks ({failed[0].get('Message', '')})")
