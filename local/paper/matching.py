"""Fills orders: when, in which parts and at what price follows from the seed, the order and the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from decimal import ROUND_DOWN, Decimal
from typing import Any

from local.paper.book import OPEN, Book
from local.paper.faults import Faults
from local.paper.prices import chance, price

#: How often resting limit orders are compared with the price.
LOOK_EVERY_S = 0.25
#: Parts of an order that is filled in parts, and the pause between them.
PARTS = 3
PART_EVERY_S = 0.05
#: The smallest quantity a fill is made of.
STEP = Decimal("0.000000001")

Tell = Callable[[str, dict[str, Any], dict[str, Any] | None], None]


class Matching:
    """One timer per working order; a limit order that the price does not reach waits for the next look.

    `tell(event, order, fill)` is called after the book has changed, never before.
    """

    def __init__(self, book: Book, seed: int, now: Callable[[], float], tell: Tell) -> None:
        self.faults = Faults()
        self._book, self._seed, self._now, self._tell = book, seed, now, tell
        self._resting: set[str] = set()

    def price(self, symbol: str) -> Decimal:
        return price(symbol, self._now(), self._seed)

    def strikes(self, share: float, *words: object) -> bool:
        """Whether a fault of this share strikes what the words name."""
        return share > 0 and chance(self._seed, *words) < share

    def resume(self) -> None:
        """Go on with the open orders of a former process."""
        for order in self._book.open_orders():
            self._later(0, order["id"])

    def accepted(self, order: dict[str, Any]) -> None:
        """Start to work on a new order."""
        self._tell("new", order, None)
        delay = self.faults.fill_after_s
        if self.strikes(self.faults.late, "late", order["client_order_id"]):
            delay += self.faults.late_by_s
        self._later(delay, order["id"])

    def cancel(self, order_id: str) -> bool:
        """End an order by request. False: it was not open any more."""
        return self._end(order_id, "canceled")

    async def watch(self) -> None:
        """Look after resting and expiring orders until cancelled."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for order_id in tuple(self._resting):
                self._resting.discard(order_id)
                self._work(order_id)

    def _later(self, delay: float, order_id: str) -> None:
        asyncio.get_running_loop().call_later(delay, self._work, order_id)

    def _end(self, order_id: str, status: str) -> bool:
        ended = self._book.end_order(order_id, status, self._now())
        if ended is not None:
            self._tell(status, ended, None)
        return ended is not None

    def _work(self, order_id: str) -> None:
        """One step for one order: reject, expire, fill a part, or let it rest."""
        order = self._book.order(order_id)
        if order is None or order["status"] not in OPEN:
            return
        name, lifetime = order["client_order_id"], self.faults.expire_after_s
        if self.strikes(self.faults.rejected, "rejected", name):
            self._end(order_id, "rejected")
        elif self._reached(order):
            self._fill_part(order, in_parts=self.strikes(self.faults.partial, "partial", name))
        elif order["time_in_force"] == "ioc":
            self._end(order_id, "canceled")
        elif order["time_in_force"] == "day" and 0 < lifetime < self._now() - order["submitted_at"]:
            self._end(order_id, "expired")
        else:
            self._resting.add(order_id)

    def _reached(self, order: dict[str, Any]) -> bool:
        if order["limit_price"] is None:
            return True
        gap = Decimal(order["limit_price"]) - self.price(order["symbol"])
        return gap >= 0 if order["side"] == "buy" else gap <= 0

    def _fill_part(self, order: dict[str, Any], *, in_parts: bool) -> None:
        qty = Decimal(order["qty"])
        left = qty - Decimal(order["filled_qty"])
        part = (qty / PARTS).quantize(STEP, ROUND_DOWN)
        # What is left after the last but one part goes in one piece, and so does what cannot be divided.
        if not in_parts or not part or left < 2 * part:
            part = left
        fill = self._book.fill(order, part, self.price(order["symbol"]), self._now())
        filled = self._book.order(order["id"])
        assert filled is not None
        done = filled["status"] == "filled"
        self._tell("fill" if done else "partial_fill", filled, fill)
        if not done:
            self._later(PART_EVERY_S, order["id"])
