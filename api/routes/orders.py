"""`/v1/users/{user_id}/orders`: orders in, what became of them out."""

from __future__ import annotations

import logging
from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.access import of_one_user, principal_of
from api.ids import OrderId, UserId
from api.orders import CancelAccepted, OrderAccepted, OrderDesk, OrderPage, new_order_id
from muster.brokers.port import NewOrder, OrderType, Side, TimeInForce
from muster.order_steps import OrderRecord

log = logging.getLogger(__name__)

User = Annotated[UserId, Path()]
Ordered = Annotated[OrderId, Path()]
IdempotencyKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        pattern=r"^[\x21-\x7e]*$",
        description="A repeat with the same key for the same user within 24 hours is the same order.",
    ),
]
#: As text or number; nine places after the point are the finest any broker here takes.
Amount = Annotated[Decimal, Field(gt=0, le=Decimal("1e9"), max_digits=18, decimal_places=9)]


class OrderBody(BaseModel):
    """An order to place."""

    model_config = ConfigDict(extra="forbid")

    symbol: Annotated[str, Field(pattern=r"^[A-Z0-9][A-Z0-9./:-]{0,31}$", examples=["AAPL", "BTC/USD"])]
    side: Side
    qty: Amount
    type: OrderType = OrderType.MARKET
    limit_price: Amount | None = None
    time_in_force: TimeInForce = TimeInForce.DAY

    @model_validator(mode="after")
    def _a_limit_has_a_price_and_a_market_order_has_none(self) -> OrderBody:
        if (self.type is OrderType.LIMIT) != (self.limit_price is not None):
            raise ValueError("limit_price is needed for type limit, and for nothing else")
        return self

    def as_order(self) -> NewOrder:
        return NewOrder(
            client_order_id=new_order_id(),
            symbol=self.symbol,
            side=self.side,
            qty=_plain(self.qty),
            type=self.type,
            limit_price=None if self.limit_price is None else _plain(self.limit_price),
            time_in_force=self.time_in_force,
        )


def _plain(amount: Decimal) -> Decimal:
    """1.0, 1.00 and 1E+0 are one amount: a repeat of a request must be seen as one. Never an exponent."""
    return Decimal(f"{amount.normalize():f}")


def router(desk: OrderDesk) -> APIRouter:
    routes = APIRouter(
        prefix="/v1/users/{user_id}/orders", tags=["orders"], dependencies=[Depends(of_one_user)]
    )

    @routes.post("", status_code=202, summary="Place an order")
    def place(
        request: Request, user_id: User, body: OrderBody, idempotency_key: IdempotencyKey = ""
    ) -> OrderAccepted:
        accepted = desk.place(user_id, body.as_order(), idempotency_key)
        log.info(
            "order %s of %s accepted, asked by %s", accepted.order_id, user_id, principal_of(request).subject
        )
        return accepted

    @routes.get("", summary="A user's orders, newest first")
    def orders(
        user_id: User,
        cursor: Annotated[str, Query(max_length=64, description="next_cursor of the page before.")] = "",
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
    ) -> OrderPage:
        return desk.orders(user_id, cursor, limit)

    @routes.get("/{order_id}", summary="One order, as it is now")
    def order(user_id: User, order_id: Ordered) -> OrderRecord:
        return desk.order(user_id, order_id)

    @routes.delete("/{order_id}", status_code=202, summary="Cancel an order")
    def cancel(request: Request, user_id: User, order_id: Ordered) -> CancelAccepted:
        accepted = desk.cancel(user_id, order_id)
        log.info(
            "cancel of order %s of %s accepted, asked by %s", order_id, user_id, principal_of(request).subject
        )
        return accepted

    return routes
