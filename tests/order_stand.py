"""What the tests of orders share: a user who is wanted running, orders, and what a broker says of them."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

from muster import keys, steps
from muster.brokers.port import NewOrder, Order, OrderStatus, OrderType, Side
from muster.model import Assignment, Cause, Via
from muster.order_steps import OrderRecord, accept_order, read_order
from muster.store import Store

REF = "muster/broker/u1"


def wanted(store: Store, user: str = "u1", credentials_ref: str = REF) -> Assignment:
    """Somebody asked for this user; its epoch is the assignment's."""
    begun = store.one(steps.begin_start(user, Cause.START, 1_000, f"c-{user}", credentials_ref))
    assert isinstance(begun, steps.Begin), begun
    return Assignment(user, begun.epoch, Via.COLD, Cause.START, 1_000, begun.command_id, credentials_ref)


def new(order_id: str, qty: str = "10", limit: str | None = None) -> NewOrder:
    price = None if limit is None else Decimal(limit)
    kind = OrderType.MARKET if limit is None else OrderType.LIMIT
    return NewOrder(order_id, "AAPL", Side.BUY, Decimal(qty), kind, price)


def told(order_id: str, status: str, filled: str = "0", qty: str = "10", at: float = 2_000.0) -> Order:
    """What the broker says of an order."""
    moment = datetime.fromtimestamp(at, UTC)
    price = Decimal("101.5") if Decimal(filled) else None
    return Order(
        client_order_id=order_id,
        broker_order_id=f"b-{order_id}",
        symbol="AAPL",
        side=Side.BUY,
        type=OrderType.MARKET,
        qty=Decimal(qty),
        filled_qty=Decimal(filled),
        average_price=price,
        status=OrderStatus(status),
        submitted_at=moment,
        updated_at=moment,
    )


def accept(store: Store, order_id: str, user: str = "u1") -> None:
    assert store.one(accept_order(user, new(order_id))) == ("accepted", order_id)


def record(store: Store, order_id: str, user: str = "u1") -> OrderRecord:
    found = store.one(read_order(user, order_id))
    assert found is not None, f"no record of {order_id}"
    return found


def make_older(store: Store, order_id: str, ms: int, user: str = "u1") -> None:
    """As if it had been accepted so much earlier."""
    store.client.hincrby(keys.order(user, order_id), "created_at", -ms)
