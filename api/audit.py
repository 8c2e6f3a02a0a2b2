"""Every change, on record: who, what, why, and what came of it.

The intent is written before the effect, and a change whose intent cannot be written is refused (503): nothing
changes without a trace. The result takes the intent's place before the caller is answered, so whoever has an
answer finds it here. A process that dies in between leaves the intent with the result "unknown": it may or
may not have happened, and the record says so. Both are in the log too, which outlives the capped stream.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from fastapi import Request
from starlette.exceptions import HTTPException

from api.auth import Principal
from api.together import Together
from muster import keys
from muster.blueprint import AUDIT_LENGTH
from muster.commands import from_ms
from muster.errors import BadCommand, TryLater
from muster.store import Step, command, fields, text

log = logging.getLogger(__name__)

_LUA = Path(__file__).parent / "lua"
REASON_HEADER = "Muster-Reason"
REASON_LENGTH = 200
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Entry:
    """One change somebody asked for."""

    at: datetime  #: when it was asked for
    who: str
    role: str
    action: str
    target: str
    reason: str
    result: (
        str  #: the status of the answer; `unknown`: the process ended, or lost the store, before it had one
    )


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Changes, newest first."""

    entries: Sequence[Entry]
    next_cursor: str | None  #: None: this was the last page


@dataclass(frozen=True, slots=True)
class Asked:
    """A change that is about to happen. `id` is its place in the stream, once it has one."""

    who: str
    role: str
    action: str
    target: str
    reason: str
    id: str = ""


async def asked(request: Request, who: Principal) -> Asked:
    """What this request wants to change, and why: the reason is in its header, or in its JSON body."""
    path, name = request.url.path, request.scope["route"].name
    action = request.path_params.get("action", name)
    target = path.removeprefix("/v1/").removesuffix(f"/{action}")
    if request.url.query:  # whom a bulk command is for
        target = f"{target}?{request.url.query}"
    return Asked(who.subject, who.role.value, action.replace("_", " "), target, await _reason(request))


async def _reason(request: Request) -> str:
    said: Any = request.headers.get(REASON_HEADER, "")
    if not said and "json" in request.headers.get("content-type", "") and await request.body():
        try:
            body = await request.json()
        except ValueError:
            return ""  # the route refuses it, with the place
        said = body.get("reason", "") if isinstance(body, dict) else ""
    if not isinstance(said, str):
        return ""
    if len(said) > REASON_LENGTH:
        raise HTTPException(422, f"reason ({REASON_HEADER}): at most {REASON_LENGTH} characters")
    return "".join(letter if letter.isprintable() else " " for letter in said)


def write_log(out: TextIO) -> None:
    """Send the log of changes there, one JSON object a line. Nothing of it is lost to another's log level."""
    handler = logging.StreamHandler(out)
    handler.setFormatter(logging.Formatter("%(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)


class Audit:
    """The stream of changes in the store. One for all processes of a deployment."""

    def __init__(self, store: Together) -> None:
        self._store = store

    async def begin(self, what: Asked) -> Asked:
        """Write the intent; `TryLater` if it cannot be written, and then nothing may change."""
        told = ("who", what.who, "role", what.role, "action", what.action, "target", what.target)
        words = ("MAXLEN", "~", AUDIT_LENGTH, "*", *told, "reason", what.reason)
        step = command("XADD", keys.AUDIT, *words, parse=text)
        begun = replace(what, id=await self._store.one(step))
        log.info(json.dumps({"audit": "asked", **asdict(begun)}))
        return begun

    async def end(self, what: Asked, result: int) -> None:
        """Put the result in the intent's place. The effect has happened: a store that is away only leaves the
        record at `unknown`, and the log has the result."""
        log.info(json.dumps({"audit": "done", **asdict(what), "result": result}))
        values = (what.id, AUDIT_LENGTH, what.who, what.role, what.action, what.target, what.reason, result)
        try:
            await self._store.one(Step(_LUA / "end_audit.lua", (keys.AUDIT,), values, list))
        except TryLater as away:
            log.warning("audit %s: the result %s could not be written (%s)", what.id, result, away)

    async def page(self, cursor: str, limit: int) -> AuditPage:
        """Changes, newest first. A cursor goes on after the last entry it was given for."""
        if cursor and not _is_id(cursor):
            raise BadCommand("cursor: not one of the audit; take next_cursor of the page before")
        newest = f"({cursor}" if cursor else "+"
        step = command("XREVRANGE", keys.AUDIT, newest, "-", "COUNT", limit + 1, parse=list)
        rows = await self._store.one(step)
        entries = [_entry(text(id_), fields(found)) for id_, found in rows[:limit]]
        return AuditPage(entries, text(rows[limit - 1][0]) if len(rows) > limit else None)


def _entry(id_: str, found: dict[str, str]) -> Entry:
    at = from_ms(int((found.get("at") or id_).split("-")[0]))
    named = {name: found[name] for name in ("who", "role", "action", "target", "reason")}
    return Entry(at=at, **named, result=found.get("result", UNKNOWN))


def _is_id(cursor: str) -> bool:
    moment, dash, number = cursor.partition("-")
    return bool(dash) and all(
        part.isascii() and part.isdecimal() and len(part) < 20 for part in (moment, number)
    )
