"""Fill checks: what the broker says of an order is the truth, written down once however often it is asked.

A worker sends a check after it has executed an order; order_tasks asks the broker by the order's own id,
records the answer and plans the next look until the order is final. The record only ever moves forward.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from muster.brokers.port import BadCredentials, Broker, BrokerAway, Credentials, Order
from muster.commands import MAX_BODY_CHARS, UserId
from muster.errors import BadCommand, TryLater
from muster.order_steps import note_unverified, record_check
from muster.store import Store

#: Looks after the first one: 60 s (the precision of a one-shot schedule), then twice as long, up to an hour.
FIRST_LOOK = timedelta(seconds=60)
LONGEST_PAUSE = timedelta(hours=1)
#: A day order is final within a day; after that nobody looks any more and the record says unverified.
MOST_LOOKS = 30
#: A broker that was away for a moment is asked again within seconds; the last of three receives comes after
#: this, and what is unanswered then is in the dead-letter queue.
AWAY_PAUSE = timedelta(seconds=120)

OrderId = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="1-64 of A-Z a-z 0-9 . _ -, the first a letter or digit",
    ),
]


class FillCheck(BaseModel):
    """One look at one order. `look` counts them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    user_id: UserId
    order_id: OrderId
    credentials_ref: Annotated[str, Field(max_length=512)]
    look: Annotated[int, Field(ge=1, le=MOST_LOOKS)] = 1

    def next_pause(self) -> timedelta:
        doublings: int = 2 ** (self.look - 1)
        return min(FIRST_LOOK * doublings, LONGEST_PAUSE)

    def next_look(self) -> FillCheck:
        return self.model_copy(update={"look": self.look + 1})


class Checked(StrEnum):
    """What a look found."""

    FINAL = "final"  #: nothing will change any more
    OPEN = "open"  #: still working; the next look is planned
    UNKNOWN = "unknown"  #: the broker does not have it; the next look is planned
    UNVERIFIED = "unverified"  #: not final after the last look; visible, nobody looks any more


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a check. `differs` is what the worker had reported, where the broker contradicts it."""

    outcome: Checked
    differs: str = ""


@dataclass(frozen=True, slots=True)
class OrderDeps:
    """The outside world of a fill check."""

    store: Store
    credentials: Callable[[str], Credentials]
    connect: Callable[[Credentials], Broker]
    plan: Callable[[FillCheck, timedelta], None]  #: put this check on the queue after a pause; repeatable


def parse_check(body: str) -> FillCheck:
    """A message body as a fill check, or `BadCommand` with a reason."""
    if len(body) > MAX_BODY_CHARS:
        raise BadCommand(f"the body has {len(body)} characters, at most {MAX_BODY_CHARS} are taken")
    try:
        raw = json.loads(body)
        return FillCheck.model_validate_json(json.dumps(raw), strict=True)
    except ValidationError as invalid:
        first = invalid.errors(include_url=False, include_input=False)[0]
        raise BadCommand(f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}") from invalid
    except (ValueError, RecursionError) as broken:
        raise BadCommand(f"the body is not JSON: {broken}") from broken


def check_fill(check: FillCheck, deps: OrderDeps) -> Look:
    """Ask the broker, record its answer, plan the next look. `TryLater` makes the message come back.

    Recorded before planned: a crash in between brings the message back, and both steps bear repeating.
    Bad credentials can never work: `BadCommand`, so that the check is parked with the order still unverified.
    """
    try:
        order = _ask(check, deps)
    except BadCredentials as refused:
        deps.store.one(note_unverified(check.user_id, check.order_id, str(refused)))
        raise BadCommand(f"order {check.order_id} stays unverified: {refused}") from refused
    except TryLater as away:
        deps.store.one(note_unverified(check.user_id, check.order_id, str(away)))
        raise
    outcome, reason = _outcome(check, order)
    verified = "verified" if outcome is Checked.FINAL else outcome.value
    if outcome is Checked.UNKNOWN:
        verified = "unverified"
    tag, *detail = deps.store.one(record_check(check.user_id, check.order_id, order, verified, reason))
    if tag == "settled":
        return Look(Checked.FINAL)
    if outcome in (Checked.OPEN, Checked.UNKNOWN):
        deps.plan(check.next_look(), check.next_pause())
    return Look(outcome, detail[0] if tag == "differs" else "")


def _ask(check: FillCheck, deps: OrderDeps) -> Order | None:
    """Twice if need be: one lost answer is not yet an absence, and a message has only three receives."""
    credentials = deps.credentials(check.credentials_ref)
    try:
        return _ask_once(check.order_id, credentials, deps)
    except BrokerAway:
        return _ask_once(check.order_id, credentials, deps)


def _ask_once(order_id: str, credentials: Credentials, deps: OrderDeps) -> Order | None:
    broker = deps.connect(credentials)
    try:
        return broker.get(order_id)
    finally:
        broker.close()


def _outcome(check: FillCheck, order: Order | None) -> tuple[Checked, str]:
    if order is not None and order.status.final:
        return Checked.FINAL, ""
    if check.look >= MOST_LOOKS:
        return Checked.UNVERIFIED, f"not final after {MOST_LOOKS} looks; look at it with the broker"
    if order is None:
        return Checked.UNKNOWN, "the broker does not have it"
    return Checked.OPEN, ""
