"""Any exchange of the optional `ccxt` package, by polling.

ccxt is imported only when a session of this broker connects: it loads every exchange (1.1 s, 89 MB).
Not every exchange refuses a repeated client order id, so `place` looks before it sends. That is safe for one
worker at a time, which is what the user's lease promises. Exchanges look orders up by market: `options` in
the secret names them, {"exchange": "kraken", "symbols": ["BTC/EUR"], "currency": "EUR", "sandbox": false}.
"""

from __future__ import annotations

import importlib
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from muster.brokers.backoff import Backoff
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
    OrderType,
    Side,
    Update,
)
from muster.brokers.rest import READ_TIMEOUT
from muster.clock import Clock

#: Pause between two looks at the open orders; exchanges allow about one call per second and key.
POLL = timedelta(seconds=1)

_ENDS = {
    "canceled": OrderStatus.CANCELLED,
    "expired": OrderStatus.EXPIRED,
    "rejected": OrderStatus.REJECTED,
}
#: Where ended orders are found: an ability of the exchange, its method, and whether it lists them all.
_HISTORIES = (
    ("fetchOrders", "fetch_orders", True),
    ("fetchCanceledAndClosedOrders", "fetch_canceled_and_closed_orders", True),
    ("fetchClosedOrders", "fetch_closed_orders", False),
    ("fetchCanceledOrders", "fetch_canceled_orders", False),
)


class CcxtBroker:
    """`Broker` on the unified methods of ccxt. One call at a time: its exchanges are not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._backoff = Backoff(clock)
        self._lock = threading.RLock()
        self._ccxt: Any = None
        self._exchange: Any = None
        self._symbols: list[str] = []
        self._currency = ""
        self._open = False
        self._known: dict[str, Order] = {}
        self._pending: deque[Update] = deque()
        self._poll_at = 0.0

    def connect(self, credentials: Credentials) -> Account:
        try:
            self._ccxt = importlib.import_module("ccxt")
        except ImportError as missing:
            raise BadCredentials(
                'the broker "ccxt" needs the optional package: install muster[ccxt] in the worker image'
            ) from missing
        options = credentials.options
        make = getattr(self._ccxt, str(options.get("exchange")), None)
        if make is None or not options.get("symbols"):
            raise BadCredentials('"options" in the secret must name a ccxt "exchange" and its "symbols"')
        self.close()
        wait = int(READ_TIMEOUT.total_seconds() * 1000)
        keys = {"apiKey": credentials.key_id, "secret": credentials.secret}
        self._exchange = make({**keys, "timeout": wait, "enableRateLimit": True})
        if options.get("sandbox"):
            self._exchange.set_sandbox_mode(True)
        self._symbols = [str(symbol) for symbol in options["symbols"]]
        self._currency = str(options.get("currency", "USDT"))
        return self.account()

    def account(self) -> Account:
        with self._call() as exchange:
            balance = exchange.fetch_balance()
        total, free = (
            Decimal(str(balance.get(part, {}).get(self._currency) or 0)) for part in ("total", "free")
        )
        return Account(
            account_id=str(exchange.id),
            currency=self._currency,
            cash=total,
            equity=total,
            buying_power=free,
            blocked=False,
        )

    def place(self, order: NewOrder) -> Order:
        with self._lock:
            if known := self.get(order.client_order_id):
                if (known.symbol, known.side, known.qty) != (order.symbol, order.side, order.qty):
                    raise OrderRejected(
                        f"client_order_id {order.client_order_id} belongs to a different order"
                    )
                return known
            params = {"clientOrderId": order.client_order_id, "timeInForce": order.time_in_force.upper()}
            if order.type is OrderType.MARKET:
                del params["timeInForce"]  # a market order has none on most exchanges, and some refuse it
            price = None if order.limit_price is None else float(order.limit_price)
            try:
                with self._call() as exchange:
                    created = exchange.create_order(
                        order.symbol, order.type.value, order.side.value, float(order.qty), price, params
                    )
            except OrderRejected as refused:
                if not isinstance(refused.__cause__, self._ccxt.DuplicateOrderId):
                    raise
                if known := self.get(order.client_order_id):
                    return known
                raise BrokerAway(f"order {order.client_order_id} exists but cannot be read yet") from refused
            # What create_order returns is as little as an id on some exchanges.
            with self._call() as exchange:
                placed = _order(exchange.fetch_order(created["id"], order.symbol), order.client_order_id)
            # Nothing of it has been told by `updates` yet, even if it is filled already.
            self._known[placed.client_order_id] = replace(
                placed, status=OrderStatus.ACCEPTED, filled_qty=Decimal()
            )
            return placed

    def cancel(self, client_order_id: str) -> Order | None:
        known = self.get(client_order_id)
        if known is None or known.status.final:
            return known
        try:
            with self._call() as exchange:
                exchange.cancel_order(known.broker_order_id, known.symbol)
        except OrderRejected as refused:
            # It came to its end in between; the read below says which.
            if not isinstance(refused.__cause__, self._ccxt.OrderNotFound):
                raise
        return self.get(client_order_id)

    def get(self, client_order_id: str) -> Order | None:
        with self._lock:
            if known := self._known.get(client_order_id):
                with self._call() as exchange, suppress(self._ccxt.OrderNotFound):
                    return _order(exchange.fetch_order(known.broker_order_id, known.symbol), client_order_id)
            for symbol in self._symbols:
                for raw in self._orders_of(symbol):
                    if raw.get("clientOrderId") == client_order_id:
                        return _order(raw, client_order_id)
        return None

    def open_orders(self) -> list[Order]:
        found: list[Order] = []
        for symbol in self._symbols:
            with self._call() as exchange:
                raws = exchange.fetch_open_orders(symbol)
            found += [_order(raw, raw.get("clientOrderId") or str(raw["id"])) for raw in raws]
        return sorted(found, key=lambda order: order.submitted_at)

    def updates(self, timeout: timedelta) -> Update | Opened | None:
        """As the port says; there is no stream, so `Opened` means that the first look succeeded."""
        if self._pending:
            return self._pending.popleft()
        if left := self._backoff.wait(timeout):
            raise BrokerAway("the exchange is away", left)
        pause = min(timeout.total_seconds(), self._poll_at - self._clock.monotonic())
        if self._open and pause > 0:
            self._clock.sleep(pause)
        if self._open and self._clock.monotonic() < self._poll_at:
            return None
        try:
            changes = self._look()
        except BrokerAway as away:
            self._open = False
            away.after = self._backoff.failed(away.after)
            raise
        self._backoff.succeeded()
        self._poll_at = self._clock.monotonic() + POLL.total_seconds()
        if not self._open:
            self._open = True
            return Opened()
        self._pending.extend(changes)
        return self._pending.popleft() if self._pending else None

    def close(self) -> None:
        with self._lock:
            if self._exchange is not None:
                self._exchange.close()
            self._exchange = None
            self._open = False
            self._known.clear()
            self._pending.clear()

    def _look(self) -> list[Update]:
        """What changed since the last look: open orders, and those that were open and are not any more."""
        with self._lock:
            now = {order.client_order_id: order for order in self.open_orders()}
            for gone in self._known.keys() - now.keys():
                if ended := self.get(gone):
                    now[gone] = ended
            changes = [
                Update(order.status.value, order, order.updated_at)
                for order in now.values()
                if order.client_order_id not in self._known
                or order.newer_than(self._known[order.client_order_id])
            ]
            self._known = {key: order for key, order in now.items() if not order.status.final}
            return changes

    def _orders_of(self, symbol: str) -> list[dict[str, Any]]:
        with self._call() as exchange:
            found = list(exchange.fetch_open_orders(symbol))
            for ability, method, complete in _HISTORIES:
                if exchange.has.get(ability):
                    found += getattr(exchange, method)(symbol)
                    if complete:
                        break
            return found

    @contextmanager
    def _call(self) -> Iterator[Any]:
        """One call at a time, with ccxt's errors as ours."""
        with self._lock:
            if self._exchange is None:
                raise BrokerAway("not connected: call connect first")
            try:
                yield self._exchange
            except self._ccxt.AuthenticationError as refused:
                raise BadCredentials("the exchange does not accept this key") from refused
            except (
                self._ccxt.InvalidOrder,
                self._ccxt.InsufficientFunds,
                self._ccxt.BadRequest,
                self._ccxt.OperationRejected,
            ) as refused:
                raise OrderRejected(str(refused)) from refused
            except (self._ccxt.BaseError, OSError) as away:
                # Its words and its trace quote the signed url of the request: they must not reach a log.
                raise BrokerAway(f"no answer from the exchange ({type(away).__name__})") from None


def _order(raw: dict[str, Any], client_order_id: str) -> Order:
    qty, filled = (Decimal(str(raw.get(name) or 0)) for name in ("amount", "filled"))
    working = OrderStatus.PARTIAL if filled else OrderStatus.ACCEPTED
    status = _ENDS.get(raw["status"], working)
    if raw["status"] == "closed":  # ccxt's word for "not open any more"; how much is filled says why
        status = OrderStatus.FILLED if filled >= qty else OrderStatus.CANCELLED
    average = raw.get("average")
    submitted = raw["timestamp"]
    return Order(
        client_order_id=client_order_id,
        broker_order_id=str(raw["id"]),
        symbol=raw["symbol"],
        side=Side(raw["side"]),
        type=OrderType(raw["type"]),
        qty=qty,
        filled_qty=filled,
        average_price=None if average is None else Decimal(str(average)),
        status=status,
        submitted_at=_time(submitted),
        updated_at=_time(raw.get("lastUpdateTimestamp") or raw.get("lastTradeTimestamp") or submitted),
    )


def _time(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)
