"""Filter, sort and cut a list of workers. A cursor names the last row shown, so rows never shift."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from api.source import Sort, WorkerQuery, WorkerView
from muster.errors import BadCommand

#: A row's place: rows without a value come last, the user id makes it unique.
Place = tuple[bool, float | str, str]


def page(workers: Sequence[WorkerView], query: WorkerQuery) -> tuple[Sequence[WorkerView], str | None, int]:
    """The rows of this page, the cursor of the next (None: no more), and how many match in all."""
    words = query.q.casefold()
    matching = [
        worker
        for worker in workers
        if (query.phase is None or worker.phase is query.phase)
        and (not words or words in worker.user_id.casefold() or words in (worker.reason or "").casefold())
    ]
    field, down = query.sort.value.removeprefix("-"), query.sort.value.startswith("-")
    placed = sorted(((_place(worker, field), worker) for worker in matching), key=lambda row: row[0])
    if down:
        placed.reverse()
    if query.cursor:
        last = _decode(query.cursor, query.sort)
        placed = [row for row in placed if (row[0] < last if down else row[0] > last)]
    rows = placed[: query.limit]
    more = len(placed) > len(rows)
    return [worker for _, worker in rows], _encode(query.sort, rows[-1][0]) if more else None, len(matching)


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
