"""Orders as the API takes and shows them: a desk in front of the user's worker.

An accepted order is on record and in the worker's inbox in one step; the worker executes it, and what became
of it is read from the record. Nothing here talks to a broker.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from api.source import NotFound
from muster.brokers.port import NewOrder
from muster.errors import BadCommand, Refused, TryLater
from muster.order_steps import OrderRecord, accept_order, cancel_order, list_orders, read_order
from muster.store import Store


@dataclass(frozen=True, slots=True)
class OrderAccepted:
    """An order that will be sent once, or expire unsent; never lost."""

    order_id: str
    repeated: bool  #: the idempotency key was seen before: this is the first order's id


@dataclass(frozen=True, slots=True)
class CancelAccepted:
    """`cancelled`: it never went to the broker. `asked`: the worker asks the broker to end it."""

    order_id: str
    result: str


@dataclass(frozen=True, slots=True)
class OrderPage:
    """A user's orders, newest first."""

    orders: Sequence[OrderRecord]
    next_cursor: str | None  #: None: this was the last page


def new_order_id() -> str:
    """The order's identity for ever: our record's, and the broker's client_order_id."""
    return uuid.uuid4().hex


class OrderDesk:
    """One desk for all users. Every method may raise `TryLater`; what else, it says itself."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def place(self, user_id: str, order: NewOrder, idempotency_key: str = "") -> OrderAccepted:
        """Accept an order. A repeat with the same key for the same user within 24 hours is the same order;
        the same key with another order is `Refused`, and so is an order for a user that is not running."""
        match self._store.one(accept_order(user_id, order, idempotency_key)):
            case ("accepted" | "repeated" as tag, order_id):
                return OrderAccepted(order_id, tag == "repeated")
            case ("other", order_id):
                raise Refused(
                    f"Idempotency-Key: already used for order {order_id}; take a new key for a new order"
                )
            case ("refused", want):
                raise Refused(_not_running(user_id, want, "order again"))
            case ("no_session",):
                raise Refused(
                    f"the worker of {user_id} has no broker session: restart it with a credentials_ref "
                    f"(POST /v1/workers/{user_id}/restart), then order again"
                )
            case (_, waiting):
                raise TryLater(f"{waiting} requests of {user_id} wait for its worker; try again later")
        raise AssertionError("accept_order gave an answer it does not have")

    def order(self, user_id: str, order_id: str) -> OrderRecord:
        """One order as it is now. `NotFound`."""
        found = self._store.one(read_order(user_id, order_id))
        if found is None:
            raise NotFound(f"{user_id} has no order {order_id}")
        return found

    def orders(self, user_id: str, cursor: str, limit: int) -> OrderPage:
        """A page, newest first. A cursor goes on after the last row it was given for; `BadCommand` if that
        order is gone."""
        tag, *ids = self._store.one(list_orders(user_id, cursor, limit + 1))
        if tag == "gone":
            raise BadCommand("cursor: not one of this list; take next_cursor of the page before")
        rows = self._store.run(*(read_order(user_id, order_id) for order_id in ids[:limit]))
        more = len(ids) > limit
        return OrderPage([row for row in rows if row is not None], ids[limit - 1] if more else None)

    def cancel(self, user_id: str, order_id: str) -> CancelAccepted:
        """Ask for the end of an order; a repeat is harmless. `NotFound`; `Refused` when it has ended in
        another way, or was sent and there is no worker to ask the broker."""
        match self._store.one(cancel_order(user_id, order_id)):
            case ("cancelled" | "asked" as result,):
                return CancelAccepted(order_id, result)
            case ("ended", "cancelled"):
                return CancelAccepted(order_id, "cancelled")
            case ("ended", status):
                raise Refused(f"order {order_id} is {status} already; there is nothing left to cancel")
            case ("refused", want):
                raise Refused(_not_running(user_id, want, "cancel again"))
        raise NotFound(f"{user_id} has no order {order_id}")


def _not_running(user_id: str, want: str, then: str) -> str:
    state = {"": "was never started", "failed": "has failed (GET its 'explain' for the reason)"}
    said = state.get(want, "is stopped")
    return f"{user_id} {said}: start it (POST /v1/workers/{user_id}/start), wait until ready, then {then}"
