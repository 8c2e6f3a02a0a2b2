"""Orders in Valkey: the record of each, and the atomic steps that move it. Standard library only.

    accept -> queued -> sending -> accepted | partial -> filled | cancelled | rejected | expired
              (in the inbox)  (written ahead: from here on the broker may have it)

An inbox entry leaves the stream last, after the result is on record and its fill check is on the queue:
what a worker leaves behind, however it ended, is what its successor finds in the stream.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from hashlib import sha256
from typing import Any

from muster import keys
from muster.brokers.port import NewOrder, Order, OrderStatus, OrderType, Side, TimeInForce
from muster.store import Step, command, fields, lua, tagged, text

#: An order that could not be sent for this long (no worker, no broker) is not sent any more: the price its
#: owner saw is gone. It ends as expired, with that reason.
SEND_WITHIN = timedelta(minutes=5)
#: Records are kept this long after the last change.
KEPT = timedelta(days=90)
#: A repeat with the same idempotency key within this is the same order.
KEY_KEPT = timedelta(hours=24)
#: More waiting than this means that the worker does not keep up; the caller is told to come back.
INBOX_MOST = 1000
#: Entries a worker takes at once.
INBOX_BATCH = 64

_KEPT_S = round(KEPT.total_seconds())


class Waiting(StrEnum):
    """Where an order is before the broker has said anything of it."""

    QUEUED = "queued"  #: in the inbox; nobody has sent it
    SENDING = "sending"  #: a worker is sending it, or ended while it did


class Do(StrEnum):
    """What an inbox entry asks for."""

    PLACE = "place"
    CANCEL = "cancel"
    CHECK = "check"  #: it ended after the last look: have one more, at the end


@dataclass(frozen=True, slots=True)
class OrderRecord:
    """What is known of one order. `verified` is unverified (and why), open (not final yet) or verified."""

    order_id: str
    symbol: str
    side: str
    qty: str
    type: str
    limit_price: str | None
    time_in_force: str
    status: str
    final: bool
    filled_qty: str
    average_price: str | None
    broker_order_id: str | None
    reason: str | None
    created_at: datetime
    updated_at: datetime | None  #: on the broker's clock, once it has the order
    cancel_asked_at: datetime | None
    reported: str | None  #: what the worker said last
    verified: str
    checked_at: datetime | None
    differs: str | None  #: what the worker had reported when the broker said something else


def _record(reply: Any) -> OrderRecord | None:
    raw = fields(reply)
    if "status" not in raw:
        return None

    def moment(name: str) -> datetime | None:
        return datetime.fromtimestamp(int(raw[name]) / 1000, UTC) if raw.get(name) else None

    created_at = moment("created_at")
    assert created_at is not None  # written with the status
    note = raw.get("check_note")
    return OrderRecord(
        order_id=raw["order_id"],
        symbol=raw["symbol"],
        side=raw["side"],
        qty=raw["qty"],
        type=raw["type"],
        limit_price=raw.get("limit_price") or None,
        time_in_force=raw["time_in_force"],
        status=raw["status"],
        final=raw["final"] == "1",
        filled_qty=raw["filled_qty"],
        average_price=raw.get("average_price") or None,
        broker_order_id=raw.get("broker_order_id") or None,
        reason=raw.get("reason") or None,
        created_at=created_at,
        updated_at=moment("updated_at"),
        cancel_asked_at=moment("cancel_asked_at"),
        reported=raw.get("reported") or None,
        verified=raw["verified"] + (f": {note}" if note else ""),
        checked_at=moment("checked_at"),
        differs=raw.get("differs") or None,
    )


def accept_order(user: str, order: NewOrder, idempotency_key: str = "") -> Step[tuple[str, ...]]:
    words = {
        "symbol": order.symbol,
        "side": order.side.value,
        "qty": str(order.qty),
        "type": order.type.value,
        "limit_price": "" if order.limit_price is None else str(order.limit_price),
        "time_in_force": order.time_in_force.value,
    }
    # Without a key the order's own id stands in: nobody else has it, and nothing is remembered under it.
    digest = sha256((idempotency_key or order.client_order_id).encode()).hexdigest()
    key = keys.order_request(user, digest)
    kept_s = round(KEY_KEPT.total_seconds()) if idempotency_key else 0
    content = json.dumps(words, separators=(",", ":"))
    args = [order.client_order_id, content, kept_s, _KEPT_S, INBOX_MOST]
    for pair in words.items():
        args += pair
    order_keys = (
        keys.order(user, order.client_order_id),
        keys.order_index(user),
        keys.inbox(user),
        key,
        keys.desired(user),
    )
    return lua("accept_order", order_keys, args, tagged)


@dataclass(frozen=True, slots=True)
class Begun:
    """What to do with an order now: `tag` is send, resend, late, known, unknown or fenced."""

    tag: str
    detail: str = ""
    order: NewOrder | None = None
    may_be_there: bool = False  #: an earlier attempt may have reached the broker


def begin_order(user: str, order_id: str, epoch: int) -> Step[Begun]:
    def parse(reply: Any) -> Begun:
        tag, *rest = tagged(reply)
        if tag not in ("send", "resend", "late"):
            return Begun(tag, rest[0] if rest else "")
        raw = fields(rest)
        return Begun(tag, "", _new_order(raw), raw["status"] == Waiting.SENDING)

    within_ms = round(SEND_WITHIN.total_seconds() * 1000)
    order_keys = (keys.order(user, order_id), keys.epoch(user), keys.open_orders(user))
    return lua("begin_order", order_keys, (epoch, within_ms, _KEPT_S), parse)


def _new_order(raw: Mapping[str, str]) -> NewOrder:
    return NewOrder(
        client_order_id=raw["order_id"],
        symbol=raw["symbol"],
        side=Side(raw["side"]),
        qty=Decimal(raw["qty"]),
        type=OrderType(raw["type"]),
        limit_price=Decimal(raw["limit_price"]) if raw["limit_price"] else None,
        time_in_force=TimeInForce(raw["time_in_force"]),
    )


def report_order(user: str, order: Order) -> Step[tuple[str, ...]]:
    """The worker was told this by the broker."""
    return _record_order(user, order.client_order_id, "worker", "", "", order)


def report_refused(user: str, order_id: str, status: OrderStatus, reason: str) -> Step[tuple[str, ...]]:
    """The worker knows that the broker holds nothing of this order."""
    return _record_order(user, order_id, "worker", "", reason, None, status)


def record_check(
    user: str, order_id: str, order: Order | None, verified: str, reason: str = ""
) -> Step[tuple[str, ...]]:
    """The broker was asked and said this; None: it does not have the order."""
    return _record_order(user, order_id, "check", verified, reason, order)


def _record_order(
    user: str,
    order_id: str,
    source: str,
    verified: str,
    reason: str,
    order: Order | None,
    refused: OrderStatus | None = None,
) -> Step[tuple[str, ...]]:
    said: tuple[Any, ...] = (refused.value if refused else "", int(refused is not None), "0", "", "", "")
    if order is not None:
        said = (
            order.status.value,
            int(order.status.final),
            str(order.filled_qty),
            "" if order.average_price is None else str(order.average_price),
            round(order.updated_at.timestamp() * 1000),
            order.broker_order_id,
        )
    args = (source, _KEPT_S, verified, reason[:200], *said)
    order_keys = (keys.order(user, order_id), keys.open_orders(user), keys.inbox(user))
    return lua("record_order", order_keys, args, tagged)


def note_unverified(user: str, order_id: str, why: str) -> Step[tuple[str, ...]]:
    """A look at this order failed; whoever reads it sees that nobody knows for sure."""
    return lua("unverified_order", (keys.order(user, order_id),), (why[:200],), tagged)


def cancel_order(user: str, order_id: str) -> Step[tuple[str, ...]]:
    return lua("cancel_order", (keys.order(user, order_id), keys.inbox(user), keys.desired(user)), (), tagged)


def read_order(user: str, order_id: str) -> Step[OrderRecord | None]:
    return command("HGETALL", keys.order(user, order_id), parse=_record)


def list_orders(user: str, after: str, limit: int) -> Step[tuple[str, ...]]:
    """Ids of the newest orders first: ('page', id ...), or ('gone',) when `after` is not among them."""
    return lua("list_orders", (keys.order_index(user),), (after, limit), tagged)


def open_order_ids(user: str) -> Step[set[str]]:
    return command("SMEMBERS", keys.open_orders(user), parse=lambda reply: {text(member) for member in reply})


@dataclass(frozen=True, slots=True)
class Entry:
    """One request in a worker's inbox."""

    entry_id: str
    do: str
    order_id: str


def read_inbox(user: str, after: str, wait: timedelta) -> Step[list[Entry]]:
    """Entries younger than `after`, oldest first; waits for one. `wait` is below the client's timeout."""
    wait_ms = max(1, round(wait.total_seconds() * 1000))
    words = ("XREAD", "COUNT", INBOX_BATCH, "BLOCK", wait_ms, "STREAMS", keys.inbox(user), after)
    return command(*words, parse=_entries)


def _entries(reply: Any) -> list[Entry]:
    entries = []
    for _stream, found in reply or ():
        for entry_id, raw in found:
            said = fields(raw)
            entries.append(Entry(text(entry_id), said.get("do", ""), said.get("order_id", "")))
    return entries


def settle_entries(user: str, entry_ids: Sequence[str]) -> Step[int]:
    """These requests are done: the result is on record, the check is on its queue."""
    return command("XDEL", keys.inbox(user), *entry_ids, parse=int)


def check_body(user: str, order_id: str, credentials_ref: str) -> str:
    """The first fill check of an order, also of one that ended after its last, as a message;
    `muster.orders.parse_check` reads it."""
    check = {"user_id": user, "order_id": order_id, "credentials_ref": credentials_ref}
    return json.dumps(check, separators=(",", ":"))
