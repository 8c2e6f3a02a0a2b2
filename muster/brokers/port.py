"""The broker port: what a session may ask of any broker, and what it may believe of the answers.

The docstrings of `Broker` are the contract; every adapter passes the same tests. Calls block and have
timeouts. Only the standard library is imported here: a process of which thousands run pays for nothing else.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Protocol

from muster.errors import Refused, TryLater


class BrokerAway(TryLater):
    """The broker did not give a usable answer. Try again after `after`.

    Whether the call had an effect is unknown. `place` with the same client_order_id is safe to repeat.
    """


class SlotTaken(BrokerAway):
    """Another connection still holds the key's only stream. Wait: a half-dead socket frees it by itself."""


class BadCredentials(Refused):
    """The broker does not accept these credentials. Never retry; a person must replace them."""


class OrderRejected(Refused):
    """The broker refused this order and holds nothing of it. Never retry; tell the owner the reason."""


class Side(StrEnum):
    BUY = "buy"
    SELL = "sell"


class OrderType(StrEnum):
    MARKET = "market"  #: at the best price there is
    LIMIT = "limit"  #: at `limit_price` or better


class TimeInForce(StrEnum):
    DAY = "day"  #: until the market closes
    GTC = "gtc"  #: until cancelled
    IOC = "ioc"  #: what can be filled at once, the rest is cancelled


class OrderStatus(StrEnum):
    ACCEPTED = "accepted"  #: the broker has it, nothing is filled
    PARTIAL = "partial"  #: some of it is filled, the rest is still working
    FILLED = "filled"  #: all of it is filled
    CANCELLED = "cancelled"  #: ended by request; a part may have been filled
    REJECTED = "rejected"  #: the broker or the market refused it after accepting it
    EXPIRED = "expired"  #: its time in force ended; a part may have been filled

    @property
    def final(self) -> bool:
        """Nothing changes after this."""
        return self not in (OrderStatus.ACCEPTED, OrderStatus.PARTIAL)


@dataclass(frozen=True, slots=True)
class Credentials:
    """What opens an account. Never logged: `repr` shows only the broker.

    `url` replaces the broker's public address. `options` is for the adapter alone.
    """

    broker: str
    key_id: str = field(repr=False)
    secret: str = field(repr=False)
    url: str | None = field(default=None, repr=False)
    options: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(cls, text: str) -> Credentials:
        """From the JSON object in the secret store. Raises `BadCredentials`, without quoting the text."""
        try:
            found = json.loads(text)
            broker, key_id, secret = (found[name] for name in ("broker", "key_id", "secret"))
            url, options = found.get("url"), found.get("options", {})
        except (ValueError, TypeError, KeyError, AttributeError):
            found = broker = key_id = secret = url = options = None
        texts = all(isinstance(word, str) and word for word in (broker, key_id, secret))
        if not texts or not isinstance(url, str | None) or not isinstance(options, dict):
            raise BadCredentials(
                'the secret must be a JSON object with the texts "broker", "key_id" and "secret" (and, if '
                'needed, the text "url" and the object "options"); write it again and start the worker'
            )
        return cls(broker, key_id, secret, url, options)


@dataclass(frozen=True, slots=True)
class NewOrder:
    """An order to place. `client_order_id` is its identity for ever: one id, one order."""

    client_order_id: str
    symbol: str
    side: Side
    qty: Decimal
    type: OrderType = OrderType.MARKET
    limit_price: Decimal | None = None
    time_in_force: TimeInForce = TimeInForce.DAY


@dataclass(frozen=True, slots=True)
class Order:
    """An order as the broker knew it at `updated_at`."""

    client_order_id: str
    broker_order_id: str
    symbol: str
    side: Side
    type: OrderType
    qty: Decimal
    filled_qty: Decimal
    average_price: Decimal | None
    status: OrderStatus
    submitted_at: datetime
    updated_at: datetime

    def newer_than(self, known: Order) -> bool:
        """Whether this says more than `known`, judged by what cannot go backwards.

        Updates arrive twice and out of order and clocks are skewed, so time decides last: an end beats
        no end, then more filled beats less, then the later time.
        """
        mine = (self.status.final, self.filled_qty, self.updated_at)
        return mine > (known.status.final, known.filled_qty, known.updated_at)


@dataclass(frozen=True, slots=True)
class Account:
    """An account now. `blocked`: it may look but not trade."""

    account_id: str
    currency: str
    cash: Decimal
    equity: Decimal
    buying_power: Decimal
    blocked: bool


@dataclass(frozen=True, slots=True)
class Update:
    """The broker says that an order changed. `price` and `qty` are of this fill alone, if it is one."""

    event: str
    order: Order
    at: datetime
    price: Decimal | None = None
    qty: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The stream is open from here on. What happened before is not in it: read `open_orders` and `get`."""


class Broker(Protocol):
    """One user's session at one broker.

    Every call may raise `BrokerAway` or `BadCredentials`; what else, it says itself. Nothing is retried
    inside, except a read whose kept-alive connection had already been closed. `updates` belongs to one
    thread; the other calls may come from any thread.
    """

    def connect(self, credentials: Credentials) -> Account:
        """Keep the credentials and prove them by reading the account. Opens no stream, so that a fill
        check can connect while a worker holds the user's only one. Repeating it replaces the credentials."""
        ...

    def account(self) -> Account:
        """The account now."""
        ...

    def place(self, order: NewOrder) -> Order:
        """Send the order once; a repeat of its client_order_id returns the order that is already there,
        in whatever state it is in by then.

        Raises `OrderRejected` when the broker refuses it, also when the id already belongs to a different
        order. After `BrokerAway` the order may or may not be there: place it again, or `get` it."""
        ...

    def cancel(self, client_order_id: str) -> Order | None:
        """Ask for the end of an order and return it as seen afterwards: it may still be open for a moment,
        and it may have been filled instead. A final order stays as it is. None: the broker never had it."""
        ...

    def get(self, client_order_id: str) -> Order | None:
        """The broker's truth about one order, read now. None: the broker never had it."""
        ...

    def open_orders(self) -> list[Order]:
        """All orders that are not final, oldest first."""
        ...

    def updates(self, timeout: timedelta) -> Update | Opened | None:
        """The next change, or None when there was none for about `timeout`.

        The first call opens the stream, and a call after a loss opens it again: each success returns
        `Opened`. As long as there is no stream, each call raises `BrokerAway` or `SlotTaken` after waiting
        for at most `timeout`; the pauses between attempts grow by themselves, so the caller only calls
        again. Updates may come twice, late, out of order or, across a loss, never: use `newer_than`."""
        ...

    def close(self) -> None:
        """Say goodbye, so that the slot is free for a successor at once. Repeating it does nothing."""
        ...
