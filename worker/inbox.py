"""The inbox of a broker session: each order is executed once, whoever began it and however that ended.

    begin_order -> lease? -> broker -> record_order -> fill check on its queue -> out of the stream
    (write-ahead)                      (forward only)  (deduplicated)

Before the first arrow nothing has happened. After it the broker may have the order, so whoever comes next
asks the broker by the order's own id and sends only what is not there. Every later step bears repeating.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from muster.brokers.backoff import Backoff
from muster.brokers.port import Broker, OrderRejected, OrderStatus
from muster.clock import Clock
from muster.errors import LostLease, TryLater
from muster.order_steps import (
    SEND_WITHIN,
    Do,
    Entry,
    begin_order,
    check_body,
    read_inbox,
    report_order,
    report_refused,
    settle_entries,
)
from muster.store import Step, Store
from worker.link import Link, say
from worker.session import Context

#: How long one look at the inbox waits for something; it is also how long a stop may take to be noticed.
LOOK = timedelta(seconds=1)
#: Messages one call to SQS takes.
_CHECKS_AT_ONCE = 10


@dataclass(frozen=True, slots=True)
class Check:
    """A fill check to send. `dedup_id` is of the inbox entry: a repeat of its execution sends nothing new."""

    order_id: str
    dedup_id: str
    body: str


class Inbox:
    """Serves one user's inbox from its beginning: what a predecessor left is the first thing in it."""

    def __init__(
        self,
        ctx: Context,
        store: Store,
        broker: Broker,
        send_checks: Callable[[Sequence[Check]], None],
        link: Link,
        clock: Clock,
    ) -> None:
        self._ctx = ctx
        self._user = ctx.given.user
        self._store = store
        self._broker = broker
        self._send = send_checks
        self._link = link
        self._checks_due = Backoff(clock)
        self._after = "0-0"
        #: Executed entries whose check is not on its queue yet: entry id -> order id.
        self._unchecked: dict[str, str] = {}

    def serve(self, look: timedelta = LOOK) -> None:
        """Execute what is there, or wait a moment for something."""
        read = read_inbox(self._user, self._after, look)
        for entry in self._link.patiently("store", lambda: self._store.one(read)):
            if self._ctx.stopping.is_set():
                return
            self._execute(entry)
            self._after = entry.entry_id
        self.send_checks()

    def send_checks(self) -> None:
        """Put the checks on their queue and take their entries out of the inbox. While the queue is away
        orders go on; the entries stay where a successor finds them."""
        while self._unchecked and not self._checks_due.left():
            batch = dict(list(self._unchecked.items())[:_CHECKS_AT_ONCE])
            ref = self._ctx.given.credentials_ref
            checks = [
                Check(order_id, f"{order_id}.{entry_id}", check_body(self._user, order_id, ref))
                for entry_id, order_id in batch.items()
            ]
            try:
                self._send(checks)
            except TryLater as away:
                say(f"fill checks wait: {away}")
                self._checks_due.failed(away.after)
                return
            self._checks_due.succeeded()
            self._settle(*batch)
            for entry_id in batch:
                del self._unchecked[entry_id]

    def _execute(self, entry: Entry) -> None:
        step: Step[tuple[str, ...]] | None = None
        match entry.do:
            case Do.PLACE:
                step = self._link.patiently("orders", lambda: self._place(entry.order_id))
            case Do.CANCEL:
                step = self._link.patiently("orders", lambda: self._cancel(entry.order_id))
            case Do.CHECK:
                say(f"order {entry.order_id} ended after its last check: one more")
            case unknown:
                say(f"inbox entry {entry.entry_id} asks for {unknown!r:.40}: dropped, nobody knows how")
                self._settle(entry.entry_id)
                return
        if step is not None:
            self._link.recorded(entry.order_id, self._stored(step))
            self._link.count("orders")
        self._unchecked[entry.entry_id] = entry.order_id

    def _place(self, order_id: str) -> Step[tuple[str, ...]] | None:
        """One attempt; what to write down, or None if there is nothing new. `BrokerAway` is for the caller,
        who comes again: then the record says that somebody has begun."""
        begun = self._store.one(begin_order(self._user, order_id, self._ctx.given.epoch))
        if begun.tag == "fenced":
            raise LostLease(f"fenced by epoch {begun.detail}")
        if begun.order is None:
            say(f"order {order_id} is {begun.detail or begun.tag} already")
            return None
        if begun.may_be_there and (found := self._broker.get(order_id)) is not None:
            return report_order(self._user, found)
        if begun.tag == "late":
            waited = f"not sent: it could not be within {SEND_WITHIN.total_seconds():.0f} s; order again"
            return report_refused(self._user, order_id, OrderStatus.EXPIRED, waited)
        self._ctx.lease.require()
        try:
            return report_order(self._user, self._broker.place(begun.order))
        except OrderRejected as refused:
            return report_refused(self._user, order_id, OrderStatus.REJECTED, str(refused))

    def _cancel(self, order_id: str) -> Step[tuple[str, ...]] | None:
        self._ctx.lease.require()
        order = self._broker.cancel(order_id)
        return None if order is None else report_order(self._user, order)

    def _settle(self, *entry_ids: str) -> None:
        self._stored(settle_entries(self._user, entry_ids))

    def _stored(self, step: Step[Any]) -> Any:
        return self._link.patiently("store", lambda: self._store.one(step))
