"""Filter, sort and cut a list of workers. A cursor names the last row shown, so rows never shift."""

from __future__ import annotations

import base64
import binascii
import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from api.source import Sort, WorkerQuery, WorkerView
from muster.errors import BadCommand

#: A row's place: rows without a value come last, the user id makes it unique.
Place = tuple[bool, float | str, str]
Row = tuple[Place, WorkerView]


def page(workers: Iterable[WorkerView], query: WorkerQuery) -> tuple[Sequence[WorkerView], str | None, int]:
    """The rows of this page, the cursor of the next (None: no more), and how many match in all."""
    ordered = order(workers, query)
    return *cut(ordered, query), len(ordered)


def order(workers: Iterable[WorkerView], query: WorkerQuery) -> list[Row]:
    """All that match, each with its place. The same for every page of a list, so a caller may keep it."""
    words = query.q.casefold()
    matching = [
        worker
        for worker in workers
        if (query.phase is None or worker.phase is query.phase)
        and (not words or words in worker.user_id.casefold() or words in (worker.reason or "").casefold())
    ]
    field, down = query.sort.value.removeprefix("-"), query.sort.value.startswith("-")
    return sorted(
        ((_place(worker, field), worker) for worker in matching), key=lambda row: row[0], reverse=down
    )


def cut(ordered: Sequence[Row], query: WorkerQuery) -> tuple[Sequence[WorkerView], str | None]:
    """The rows of this page, and the cursor of the next."""
    start = 0
    if query.cursor:
        last = _decode(query.cursor, query.sort)
        down = query.sort.value.startswith("-")
        start = bisect_left(ordered, True, key=lambda row: row[0] < last if down else row[0] > last)
    rows = ordered[start : start + query.limit]
    more = len(ordered) > start + len(rows)
    return [worker for _, worker in rows], _encode(query.sort, rows[-1][0]) if more else None


def _place(worker: WorkerView, field: str) -> Place:
    value: Any = getattr(worker, field)
    if isinstance(value, datetime):
        value = value.timestamp()
    if value is None:
        value = "" if field in ("user_id", "phase") else 0
    return (getattr(worker, field) is None, value, worker.user_id)


def _encode(sort: Sort, place: Place) -> str:
    raw = json.dumps([sort.value, *place], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _decode(cursor: str, sort: Sort) -> Place:
    wrong = BadCommand("cursor: not one of this list; take next_cursor of the page before, or start without")
    try:
        padded = cursor.encode("ascii") + b"=" * (-len(cursor) % 4)
        parts = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, RecursionError) as broken:
        raise wrong from broken
    kind = str if sort.value.lstrip("-") in ("user_id", "phase") else (int, float)
    match parts:
        case [sort.value, bool(none), value, str(user)] if isinstance(value, kind):
            return (none, value, user)
    raise wrong
