"""The users' broker on virtual time. Its book is the judge of what was traded.

One account per user and one stream per account. Calls fail with the order taken, not taken or taken a little
later; fills come late, twice and out of order; credentials are revoked. The real session, inbox and fill
checks meet it through the port of `muster/brokers`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from muster.brokers.port import (
    Account,
    BadCredentials,
    BrokerAway,
    Credentials,
    NewOrder,
    Opened,
    Order,
    OrderRejected,
    OrderStatus,
    SlotTaken,
    Update,
)
from muster.brokers.rest import READ_TIMEOUT
from muster.errors import TryLater
from sim.workers import FLIGHT_S, SimWorker, Stopping

if TYPE_CHECKING:
    from sim.world import World

T = TypeVar("T")
#: What the broker says of an order that it refuses at once.
_REFUSED = "insufficient buying power"


@dataclass(slots=True)
class BookOrder:
    """One order as the broker has it."""

    asked: NewOrder
    number: int
    arrived: float
    updated: float
    status: OrderStatus = OrderStatus.ACCEPTED
    filled: Decimal = Decimal(0)

    def seen(self) -> Order:
        return Order(
            client_order_id=self.asked.client_order_id,
            broker_order_id=f"b-{self.number}",
            symbol=self.asked.symbol,
            side=self.asked.side,
            type=self.asked.type,
            qty=self.asked.qty,
            filled_qty=self.filled,
            average_price=Decimal(100) if self.filled else None,
            status=self.status,
            submitted_at=datetime.fromtimestamp(self.arrived, UTC),
            updated_at=datetime.fromtimestamp(self.updated, UTC),
        )


@dataclass(slots=True)
class SimAccount:
    """One user's account."""

    user: str
    book: dict[str, BookOrder] = field(default_factory=dict)
    stream: SimBroker | None = None  #: who holds the only one
    taken_until: float = 0.0  #: a half-dead socket still holds it


class BrokerWorld:
    """All accounts. Faults set the knobs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.accounts = {user: SimAccount(user) for user in world.users}
        self.away_until = 0.0
        self.slow_until = 0.0
        self.vault_away_until = 0.0
        self.revoked_until: dict[str, float] = {}
        self.next_updates: list[str] = []

    def credentials(self, reference: str) -> Credentials:
        """Secrets Manager."""

        def reach() -> None:
            if self.vault_away_until > self.world.loop.now:
                raise TryLater("the secret store does not answer")

        user = reference.removeprefix("secret-")
        return self.world.effect("vault", "read", lambda: Credentials("sim", user, "s"), reach=reach)  # type: ignore[no-any-return]

    def connect(self, credentials: Credentials) -> SimBroker:
        broker = SimBroker(self, self.accounts[credentials.key_id])
        broker.connect(credentials)
        return broker

    def arrive(self, sender: SimBroker, order: NewOrder, sent_at: float) -> Order:
        """An order reaches the broker."""
        account, now = sender.ledger, self.world.loop.now
        known = account.book.get(order.client_order_id)
        self.world.audit("placed", sender, order, known, sent_at)
        self.landed(sender, sent_at)
        if known is not None:
            return known.seen()
        if self.world.rng.random() < 0.05:
            raise OrderRejected(_REFUSED)
        number = sum(len(a.book) for a in self.accounts.values()) + 1
        entry = account.book[order.client_order_id] = BookOrder(order, number, now, now)
        self.world.trace("book", account.user, order.client_order_id, "accepted")
        self._play(account, entry)
        return entry.seen()

    def landed(self, sender: SimBroker, sent_at: float) -> None:
        """A side effect of a worker has reached the broker. One that a fault held up on its way is the gap
        that no lease closes; the order's own id does."""
        worker, in_time = sender.worker, self.world.loop.now - sent_at <= FLIGHT_S
        if worker is not None and worker.given is not None and not worker.dead and in_time:
            self.world.audit("landed", worker, worker.given)

    def _play(self, account: SimAccount, entry: BookOrder) -> None:
        """What the market does with it."""
        rng, qty = self.world.rng, entry.asked.qty
        soon, later = rng.uniform(0.1, 6.0), rng.uniform(20.0, 80.0)
        half, rest = (soon, OrderStatus.PARTIAL, qty / 2), soon + rng.uniform(0.0, 20.0)
        acts = rng.choice(
            (
                [(soon, OrderStatus.FILLED, qty)],
                [(soon, OrderStatus.FILLED, qty)],
                [half, (rest, OrderStatus.FILLED, qty)],
                [(later, OrderStatus.EXPIRED, Decimal(0))],
                [half, (later, OrderStatus.EXPIRED, qty / 2)],
                [(soon, OrderStatus.REJECTED, Decimal(0))],
            )
        )
        for after, status, filled in acts:
            self.world.loop.after(after, partial(self.change, account, entry, status, filled))

    def change(self, account: SimAccount, entry: BookOrder, status: OrderStatus, filled: Decimal) -> None:
        if entry.status.final:
            return
        entry.status, entry.filled = status, max(entry.filled, filled)
        entry.updated = self.world.loop.now
        self.world.trace("book", account.user, entry.asked.client_order_id, status.value, str(entry.filled))
        self._tell(account, entry.seen())

    def _tell(self, account: SimAccount, order: Order) -> None:
        """Over the stream, if there is one: late, twice, out of order."""
        stream, rng = account.stream, self.world.rng
        if stream is None:
            return
        fault = self.next_updates.pop(0) if self.next_updates else ""
        for _ in range(2 if fault == "twice" else 1):
            delay = rng.uniform(0.01, 0.5) + (rng.uniform(5.0, 70.0) if fault == "late" else 0.0)
            update = Update(order.status.value, order, order.updated_at)
            self.world.loop.after(delay, partial(stream.hear, update))

    def drop_stream(self, user: str) -> None:
        """The socket breaks; the broker may take a while to see it."""
        account = self.accounts[user]
        if account.stream is not None:
            account.stream.broken()
            account.stream = None
            account.taken_until = self.world.loop.now + self.world.rng.choice((0.0, 0.0, 15.0))

    def heal(self) -> None:
        now = self.world.loop.now
        self.away_until = self.slow_until = self.vault_away_until = now
        self.revoked_until.clear()
        self.next_updates.clear()


class SimBroker:
    """The `Broker` of one process for one account."""

    def __init__(self, broker: BrokerWorld, account: SimAccount) -> None:
        self._broker = broker
        self._world = broker.world
        self.ledger = account
        actor = self._world.loop.actor
        self.worker = actor if isinstance(actor, SimWorker) else None
        self.opened_at = self._world.loop.now
        self.closed = False
        self.asked: set[str] = set()  #: orders that the broker did not have when this session asked
        self._heard: list[Update] = []
        self._news: Stopping | None = None
        self._streaming = False

    def _call(self, name: str, do: Callable[[], T]) -> T:
        broker, world = self._broker, self._world

        def reach() -> None:
            if broker.away_until > world.loop.now:
                raise BrokerAway("the broker answers with 503")

        def answered() -> T:
            if broker.revoked_until.get(self.ledger.user, 0.0) > world.loop.now:
                raise BadCredentials("the broker does not accept these credentials")
            if broker.slow_until > world.loop.now and world.rng.random() < 0.4:
                self._time_out(do)
            return do()

        return world.effect(  # type: ignore[no-any-return]
            "broker", name, answered, reach=reach, lost=lambda: BrokerAway("connection reset")
        )

    def _time_out(self, do: Callable[[], Any]) -> None:
        """The answer does not come in time; the call has been done, is still to be, or never will be."""

        def quietly() -> None:
            with suppress(OrderRejected, SlotTaken):
                do()

        fate = self._world.rng.choice(("never", "done", "later"))
        if fate == "done":
            quietly()
        elif fate == "later":
            self._world.loop.after(self._world.rng.uniform(0.0, 15.0), quietly)
        self._world.loop.sleep(READ_TIMEOUT.total_seconds())
        raise BrokerAway(f"no answer ({fate})")

    def connect(self, credentials: Credentials) -> Account:  # noqa: ARG002 - the account was found by them
        account = self.account()
        self.opened_at = self._world.loop.now
        if self.worker is not None:
            self._world.audit("connected", self)
        return account

    def account(self) -> Account:
        one = Decimal(1)
        return self._call("account", lambda: Account(self.ledger.user, "USD", one, one, one, blocked=False))

    def place(self, order: NewOrder) -> Order:
        self._world.audit("sending", self, f"order {order.client_order_id}")
        sent_at = self._world.loop.now
        return self._call("place", lambda: self._broker.arrive(self, order, sent_at))

    def cancel(self, client_order_id: str) -> Order | None:
        self._world.audit("sending", self, f"cancel of {client_order_id}")
        sent_at = self._world.loop.now

        def arrive() -> Order | None:
            self._broker.landed(self, sent_at)
            entry = self.ledger.book.get(client_order_id)
            if entry is None:
                return None
            end = partial(self._broker.change, self.ledger, entry, OrderStatus.CANCELLED, entry.filled)
            self._world.loop.after(self._world.rng.choice((0.0, 0.0, 2.0)), end)
            return entry.seen()

        return self._call("cancel", arrive)

    def get(self, client_order_id: str) -> Order | None:
        def read() -> Order | None:
            entry = self.ledger.book.get(client_order_id)
            if entry is None:
                self.asked.add(client_order_id)
            return entry.seen() if entry else None

        return self._call("get", read)

    def open_orders(self) -> list[Order]:
        return self._call(
            "open orders", lambda: [e.seen() for e in self.ledger.book.values() if not e.status.final]
        )

    def updates(self, timeout: timedelta) -> Update | Opened | None:
        assert self.worker is not None
        if not self._streaming:
            try:
                self._call("stream", self._take_slot)
            except BrokerAway:
                self.worker.pause(timeout.total_seconds())
                raise
            self._streaming = True
            return Opened()
        if not self._heard:
            self._news = Stopping(self.worker)
            self._news.wait(timeout.total_seconds())
            self._news = None
        if self._heard:
            return self._heard.pop(0)
        if self.ledger.stream is not self:
            self._streaming = False
            raise BrokerAway("the stream was lost")
        return None

    def _take_slot(self) -> None:
        account, now = self.ledger, self._world.loop.now
        holder = account.stream
        if holder is not None and holder.worker is not None and (holder.worker.dead or holder.closed):
            account.stream, holder = None, None
            account.taken_until = now + self._world.rng.choice((0.0, 1.0, 12.0))
        if (holder is not None and holder is not self) or account.taken_until > now:
            raise SlotTaken("another connection holds the stream")
        account.stream = self

    def hear(self, update: Update) -> None:
        if self.ledger.stream is self:
            self._heard.append(update)
            if self._news is not None:
                self._news.set()

    def broken(self) -> None:
        if self._news is not None:
            self._news.set()

    def close(self) -> None:
        """The goodbye may be lost; then the slot stays taken until the broker sees that nobody is there."""
        if self.closed:
            return
        self.closed = True

        def goodbye() -> None:
            if self.ledger.stream is self:
                self.ledger.stream = None

        with suppress(BrokerAway, BadCredentials):
            self._call("close", goodbye)
