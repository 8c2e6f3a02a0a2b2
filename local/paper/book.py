"""The broker's own book: accounts, orders, fills and streams in SQLite. It is the judge in every audit.

Money and quantities are kept as text and counted as `Decimal`. Each method is one transaction. Times are
seconds since 1970 on the server's clock, without the skew it may show to clients.
"""

from __future__ import annotations

import hashlib
import sqlite3
import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

OPEN = ("new", "partially_filled")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS accounts (
  key_id TEXT PRIMARY KEY, secret_hash TEXT NOT NULL, account_id TEXT NOT NULL,
  cash TEXT NOT NULL, created_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS orders (
  id TEXT PRIMARY KEY, key_id TEXT NOT NULL, client_order_id TEXT NOT NULL, symbol TEXT NOT NULL,
  side TEXT NOT NULL, type TEXT NOT NULL, qty TEXT NOT NULL, limit_price TEXT, time_in_force TEXT NOT NULL,
  status TEXT NOT NULL, filled_qty TEXT NOT NULL DEFAULT '0', paid TEXT NOT NULL DEFAULT '0',
  attempts INTEGER NOT NULL DEFAULT 1, submitted_at REAL NOT NULL, updated_at REAL NOT NULL,
  UNIQUE (key_id, client_order_id));
CREATE INDEX IF NOT EXISTS orders_by_status ON orders (key_id, status, submitted_at);
CREATE TABLE IF NOT EXISTS fills (
  execution_id TEXT PRIMARY KEY, order_id TEXT NOT NULL, qty TEXT NOT NULL, price TEXT NOT NULL,
  at REAL NOT NULL);
CREATE INDEX IF NOT EXISTS fills_by_order ON fills (order_id);
CREATE TABLE IF NOT EXISTS positions (
  key_id TEXT NOT NULL, symbol TEXT NOT NULL, qty TEXT NOT NULL, cost TEXT NOT NULL,
  PRIMARY KEY (key_id, symbol));
CREATE TABLE IF NOT EXISTS sessions (
  id INTEGER PRIMARY KEY, key_id TEXT NOT NULL, opened_at REAL NOT NULL, closed_at REAL, goodbye INTEGER);
"""


class DuplicateOrder(Exception):
    """The account already has an order of this client_order_id."""


class Book:
    """Everything the broker knows. With a file it survives the process; without, it is gone with it."""

    def __init__(self, file: Path | None = None) -> None:
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(file or ":memory:", isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.execute("PRAGMA journal_mode=WAL")
        # A crash of the process loses nothing; a power cut may. It is play money.
        self._db.execute("PRAGMA synchronous=OFF")
        self._db.executescript(_SCHEMA)

    def close(self) -> None:
        self._db.close()

    def _rows(self, sql: str, *values: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in self._db.execute(sql, values)]

    # -- accounts

    def account(self, key_id: str) -> dict[str, Any] | None:
        return next(iter(self._rows("SELECT * FROM accounts WHERE key_id = ?", key_id)), None)

    def create_account(self, key_id: str, secret: str, cash: Decimal, now: float) -> dict[str, Any]:
        """A new account, or the one that is there. The secret is kept as a hash."""
        self._db.execute(
            "INSERT OR IGNORE INTO accounts VALUES (?, ?, ?, ?, ?)",
            (key_id, secret_hash(secret), str(uuid.uuid5(uuid.NAMESPACE_OID, key_id)), str(cash), now),
        )
        found = self.account(key_id)
        assert found is not None
        return found

    def positions(self, key_id: str) -> list[dict[str, Any]]:
        rows = self._rows("SELECT * FROM positions WHERE key_id = ? ORDER BY symbol", key_id)
        return [row for row in rows if Decimal(row["qty"])]

    # -- orders

    def add_order(self, key_id: str, order: dict[str, Any], now: float) -> dict[str, Any]:
        """Keep a new order. Raises `DuplicateOrder`, and counts the attempt on the order that is there."""
        names = ("client_order_id", "symbol", "side", "type", "qty", "limit_price", "time_in_force")
        order_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{key_id}/{order['client_order_id']}"))
        try:
            self._db.execute(
                f"INSERT INTO orders (id, key_id, {', '.join(names)}, status, submitted_at, updated_at)"  # noqa: S608 - constant names
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 'new', ?, ?)",
                (order_id, key_id, *(order[name] for name in names), now, now),
            )
        except sqlite3.IntegrityError:
            self._db.execute("UPDATE orders SET attempts = attempts + 1 WHERE id = ?", (order_id,))
            raise DuplicateOrder(order["client_order_id"]) from None
        found = self.order(order_id)
        assert found is not None
        return found

    def order(self, order_id: str) -> dict[str, Any] | None:
        return next(iter(self._rows("SELECT * FROM orders WHERE id = ?", order_id)), None)

    def order_of(self, key_id: str, client_order_id: str) -> dict[str, Any] | None:
        sql = "SELECT * FROM orders WHERE key_id = ? AND client_order_id = ?"
        return next(iter(self._rows(sql, key_id, client_order_id)), None)

    def orders(self, key_id: str, status: str = "all") -> list[dict[str, Any]]:
        """An account's orders by time: open, closed or all."""
        which = {"open": "AND status IN (?, ?)", "closed": "AND status NOT IN (?, ?)", "all": ""}[status]
        values: Sequence[Any] = OPEN if which else ()
        sql = f"SELECT * FROM orders WHERE key_id = ? {which} ORDER BY submitted_at, rowid"  # noqa: S608 - from the table above
        return self._rows(sql, key_id, *values)

    def open_orders(self) -> list[dict[str, Any]]:
        """All accounts' open orders: what the matching goes on with after a restart."""
        return self._rows("SELECT * FROM orders WHERE status IN (?, ?) ORDER BY submitted_at, rowid", *OPEN)

    def end_order(self, order_id: str, status: str, now: float) -> dict[str, Any] | None:
        """End an open order. None: it was not open any more, and nothing changed."""
        ended = self._db.execute(
            "UPDATE orders SET status = ?, updated_at = ? WHERE id = ? AND status IN (?, ?)",
            (status, now, order_id, *OPEN),
        )
        return self.order(order_id) if ended.rowcount else None

    def fill(self, order: dict[str, Any], qty: Decimal, price: Decimal, now: float) -> dict[str, Any]:
        """Fill a part of an open order, and move cash and position with it. Returns the fill."""
        count = len(self.fills(order["id"]))
        execution_id = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{order['id']}/{count}"))
        filled = Decimal(order["filled_qty"]) + qty
        status = "filled" if filled >= Decimal(order["qty"]) else "partially_filled"
        signed = qty if order["side"] == "buy" else -qty
        key_id, symbol = order["key_id"], order["symbol"]
        held = self._rows("SELECT * FROM positions WHERE key_id = ? AND symbol = ?", key_id, symbol)
        before, cost = (Decimal(held[0][name]) for name in ("qty", "cost")) if held else (Decimal(),) * 2
        account = self.account(key_id)
        assert account is not None
        with self._db:
            self._db.execute("BEGIN")
            self._db.execute(
                "INSERT INTO fills VALUES (?, ?, ?, ?, ?)",
                (execution_id, order["id"], str(qty), str(price), now),
            )
            self._db.execute(
                "UPDATE orders SET status = ?, filled_qty = ?, paid = ?, updated_at = ? WHERE id = ?",
                (status, str(filled), str(Decimal(order["paid"]) + qty * price), now, order["id"]),
            )
            self._db.execute(
                "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?)",
                (key_id, symbol, str(before + signed), str(_cost(before, cost, signed, price))),
            )
            self._db.execute(
                "UPDATE accounts SET cash = ? WHERE key_id = ?",
                (str(Decimal(account["cash"]) - signed * price), key_id),
            )
        return {
            "execution_id": execution_id,
            "qty": str(qty),
            "price": str(price),
            "position": before + signed,
        }

    def fills(self, order_id: str) -> list[dict[str, Any]]:
        return self._rows("SELECT * FROM fills WHERE order_id = ? ORDER BY at, rowid", order_id)

    # -- streams

    def open_session(self, key_id: str, now: float) -> int:
        row = self._db.execute("INSERT INTO sessions (key_id, opened_at) VALUES (?, ?)", (key_id, now))
        return int(row.lastrowid or 0)

    def close_session(self, session: int, now: float, *, goodbye: bool) -> None:
        self._db.execute(
            "UPDATE sessions SET closed_at = ?, goodbye = ? WHERE id = ?", (now, goodbye, session)
        )

    def close_all_sessions(self, now: float) -> None:
        """After a restart: no stream of the former process lives."""
        self._db.execute("UPDATE sessions SET closed_at = ?, goodbye = 0 WHERE closed_at IS NULL", (now,))

    # -- audits

    def all_orders(self) -> list[dict[str, Any]]:
        """Every order with the number of its fills and of the attempts to place it."""
        return self._rows(
            "SELECT o.*, (SELECT COUNT(*) FROM fills f WHERE f.order_id = o.id) AS fills"
            " FROM orders o ORDER BY submitted_at, rowid"
        )

    def all_sessions(self) -> list[dict[str, Any]]:
        """Every stream there ever was; `closed_at` is null while it is open."""
        return self._rows("SELECT * FROM sessions ORDER BY opened_at, id")


def secret_hash(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def _cost(before: Decimal, cost: Decimal, signed: Decimal, price: Decimal) -> Decimal:
    """What a position cost after a fill: growing adds to it, shrinking keeps the average entry price."""
    if before * signed >= 0:
        return cost + signed * price
    after = before + signed
    return cost * after / before if before * after >= 0 else after * price
