"""Fill checks: what the broker says of an order is the truth, written down once however often it is asked.

A worker sends a check after it has executed an order; order_tasks asks the broker by the order's own id,
records the answer and plans the next look until the order is final. The record only ever moves forward.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from enum import StrEnum

from muster.brokers.port import BadCredentials, Broker, BrokerAway, Credentials, Order
from muster.commands import CREDENTIALS_REF, USER_ID
from muster.errors import BadCommand, TryLater
from muster.messages import check_fields, read_message, whole, words
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

ORDER_ID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
ORDER_ID_DESCRIBED = "1-64 of A-Z a-z 0-9 . _ -, the first a letter or digit"

RULES = {
    "version": whole(1, 1),
    "user_id": USER_ID,
    "order_id": words(ORDER_ID_PATTERN, ORDER_ID_DESCRIBED),
    "credentials_ref": CREDENTIALS_REF,
    "look": whole(1, MOST_LOOKS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FillCheck:
    """One look at one order. `look` counts them."""

    version: int = 1
    user_id: str
    order_id: str
    credentials_ref: str
    look: int = 1

    def __post_init__(self) -> None:
        check_fields(self, RULES)

    def body(self) -> str:
        """The message body."""
        return json.dumps(asdict(self), separators=(",", ":"))

    def next_pause(self) -> timedelta:
        doublings: int = 2 ** (self.look - 1)
        return min(FIRST_LOOK * doublings, LONGEST_PAUSE)

    def next_look(self) -> FillCheck:
        return replace(self, look=self.look + 1)


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
    return read_message(FillCheck, body)


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
