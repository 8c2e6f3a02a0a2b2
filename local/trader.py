"""Orders placed from outside, and what the paper broker's own book says became of them.

The demonstration and the chaos run use it. Nothing here asks Muster whether it was right: its answers are
compared with the broker's book and with the broker's list of connections.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import httpx

from local.driver import EngineProcess
from local.paper.audit import Shared, shared
from local.paper.service import user_of

SYMBOL = "MSFT"
#: What the book calls an end, and what the record of an order must say.
_WORDS = {"filled": "filled", "canceled": "cancelled", "rejected": "rejected", "expired": "expired"}


@dataclass
class Judged:
    """What the book says about the orders of a run. `wrong` is empty when every order has one truth."""

    orders: int = 0  #: accepted by the API
    agreed: int = 0  #: final, and as the broker has them
    executed_twice: int = 0  #: orders that the book has more than once
    sent_twice: int = 0  #: attempts beyond the first, which the broker refused
    unverified: int = 0  #: as the broker has them, but a check has not said so yet
    wrong: list[str] = field(default_factory=list)


class Trader:
    """Places orders through the API and remembers which were accepted."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine
        self.accepted: dict[str, str] = {}  #: order id -> user
        self._closed: set[str] = set()
        self._lives: dict[str, tuple[float, float | None]] = {}

    def turn(self, **knobs: Any) -> None:
        """Turn knobs of the paper broker. Two connections of one key are always let in, so that its list can
        show them: a broker that refuses the second would hide the fault."""
        self._paper("PATCH", "/admin/faults", {"one_stream": False} | knobs)

    def drop_streams(self) -> int:
        """Cut every connection without a word; how many there were."""
        return int(self._paper("POST", "/admin/drop-streams")["dropped"])

    def place(self, user: str, qty: int = 1) -> str:
        """An accepted order's id. `httpx.HTTPError` if it was not accepted, or nobody knows."""
        answer = self._engine.api.post(
            f"/v1/users/{user}/orders",
            json={"symbol": SYMBOL, "side": "buy", "qty": str(qty)},
            headers={"Idempotency-Key": uuid.uuid4().hex},
        )
        answer.raise_for_status()
        order_id = str(answer.json()["order_id"])
        self.accepted[order_id] = user
        return order_id

    def unfinished(self) -> list[str]:
        """Orders that have no end yet."""
        return [name for name, row in self._records().items() if not row["final"]]

    def unverified(self) -> list[str]:
        """Orders whose end the broker has not confirmed to a check yet."""
        return [name for name, row in self._records().items() if not _verified(row)]

    def judge(self, *, close: bool = False) -> Judged:
        """Compare every record with the book, and the book with the records. `close` ends the account of the
        orders judged: their records may be lost from now on."""
        found = Judged(len(self.accepted))
        records = self._records()
        self._lives |= {name: _life(row) for name, row in records.items()}
        held = self._paper("GET", "/audit/orders")
        book = {row["client_order_id"]: row for row in held}
        found.sent_twice = sum(row["attempts"] - 1 for row in held)
        found.executed_twice = len(held) - len(book)
        for name in self.accepted.keys() - records.keys() - self._closed:
            found.wrong.append(f"{name} was accepted and is unknown")
        for name in book.keys() - records.keys() - self._closed:
            found.wrong.append(f"{name} is in the book and nobody placed it")
        for name, row in records.items():
            if why := _differs(row, book.get(name)):
                found.wrong.append(f"{name}: {why}")
            else:
                found.agreed += 1
                found.unverified += not _verified(row)
        found.agreed += len(self._closed)
        if close and not found.wrong:
            self._closed |= records.keys()
        return found

    @property
    def users(self) -> list[str]:
        """Everybody who ever had an order accepted."""
        return sorted(set(self.accepted.values()))

    def lives(self) -> list[tuple[float, float | None]]:
        """When each order judged so far was accepted, and when the broker was last asked about it."""
        return list(self._lives.values())

    def to_final_ms(self, names: list[str]) -> list[float]:
        """How long each of these took from accepted to its end at the broker."""
        records = self._records()
        return [
            (_instant(records[name]["updated_at"]) - _instant(records[name]["created_at"])) * 1000
            for name in names
            if name in records and records[name]["final"]
        ]

    def shared(self) -> list[Shared]:
        """Every time the broker had two connections of one user."""
        return shared(self._paper("GET", "/audit/sessions"), time.time())

    def connections(self) -> dict[str, list[tuple[float, float]]]:
        """From when to when (seconds since 1970) the broker had a connection of each user."""
        found: dict[str, list[tuple[float, float]]] = {}
        for session in self._paper("GET", "/audit/sessions"):
            closed = time.time() if session["closed_at"] is None else session["closed_at"]
            found.setdefault(user_of(session["key_id"]), []).append((session["opened_at"], closed))
        return found

    def _records(self) -> dict[str, dict[str, Any]]:
        """What Muster knows of every order that is not closed, also of one whose answer was lost."""
        rows: dict[str, dict[str, Any]] = {}
        for user in self.users:
            cursor = ""
            while True:
                params = {"cursor": cursor, "limit": 200}
                answer = self._engine.api.get(f"/v1/users/{user}/orders", params=params)
                answer.raise_for_status()
                page = answer.json()
                rows |= {row["order_id"]: row for row in page["orders"]}
                if page["next_cursor"] is None:
                    break
                cursor = page["next_cursor"]
        return {name: row for name, row in rows.items() if name not in self._closed}

    def _paper(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = httpx.request(method, self._engine.endpoints["paper"] + path, json=body, timeout=30)
        answer.raise_for_status()
        return answer.json()


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _life(row: dict[str, Any]) -> tuple[float, float | None]:
    return _instant(row["created_at"]), row["checked_at"] and _instant(row["checked_at"])


def _verified(row: dict[str, Any]) -> bool:
    return bool(row["final"] and row["verified"] == "verified")


def _differs(row: dict[str, Any], held: dict[str, Any] | None) -> str:
    """Why a record and the book do not tell the same story; empty if they do."""
    if not row["final"]:
        return f"{row['status']}, {row['verified']}: {row['reason']}"
    if held is None:
        # An order the broker refused, or that was never sent, is in no book.
        return "" if row["status"] in ("rejected", "expired", "cancelled") else "the broker has nothing of it"
    seen = (row["status"], Decimal(row["filled_qty"]))
    truth = (_WORDS.get(held["status"], held["status"]), Decimal(held["filled_qty"]))
    if seen != truth:
        return f"recorded as {seen[0]} {seen[1]}, in the book {truth[0]} {truth[1]}"
    return ""
