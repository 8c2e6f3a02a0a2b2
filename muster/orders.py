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
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from muster import keys
from muster.brokers.port import BadCredentials, Broker, Credentials, Order
from muster.commands import MAX_BODY_CHARS, UserId
from muster.errors import BadCommand
from muster.store import Step, Store, lua, tagged

#: Looks after the first one: 60 s (the precision of a one-shot schedule), then twice as long, up to an hour.
FIRST_LOOK = timedelta(seconds=60)
LONGEST_PAUSE = timedelta(hours=1)
#: A day order is final within a day; after that nobody looks any more and the record says unverified.
MOST_LOOKS = 30

OrderId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


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


class Checked(StrEnum):
    """What a look found."""

    FINAL = "final"  #: nothing will change any more
    OPEN = "open"  #: still working; the next look is planned
    UNKNOWN = "unknown"  #: the broker never had it; the next look is planned
    UNVERIFIED = "unverified"  #: not final after the last look; visible, nobody looks any more


@dataclass(frozen=True, slots=True)
class OrderDeps:
    """The outside world of a fill check."""

    store: Store
    credentials: Callable[[str], Credentials]
    connect: Callable[[Credentials], Broker]
    plan: Callable[[FillCheck, timedelta], None]  #: put this check on the queue after a pause


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


def record_order(user: str, order_id: str, order: Order | None, verified: str) -> Step[tuple[str, ...]]:
    """Write down what the broker said, unless something newer is known."""
    args: tuple[Any, ...] = (verified,)
    if order is not None:
        args += (
            order.status.value,
            int(order.status.final),
            str(order.filled_qty),
            str(order.average_price or ""),
            order.updated_at.isoformat(),
            order.broker_order_id,
        )
    return lua("record_order", (keys.order(user, order_id), keys.history(user)), args, tagged)


def check_fill(check: FillCheck, deps: OrderDeps) -> Checked:
    """Ask the broker, record its answer, plan the next look. `BrokerAway` makes the record come back.

    Bad credentials can never work: `BadCommand`, so that the check is parked with the order still unverified.
    """
    try:
        broker = deps.connect(deps.credentials(check.credentials_ref))
    except BadCredentials as refused:
        deps.store.one(record_order(check.user_id, check.order_id, None, str(refused)))
        raise BadCommand(f"order {check.order_id} stays unverified: {refused}") from refused
    try:
        order = broker.get(check.order_id)
    finally:
        broker.close()
    if order is not None and order.status.final:
        deps.store.one(record_order(check.user_id, check.order_id, order, "verified"))
        return Checked.FINAL
    last = check.look >= MOST_LOOKS
    if not last:
        deps.plan(check.model_copy(update={"look": check.look + 1}), check.next_pause())
    verified = "unverified: not final after the last look" if last else "open"
    deps.store.one(record_order(check.user_id, check.order_id, order, verified))
    if last:
        return Checked.UNVERIFIED
    return Checked.OPEN if order is not None else Checked.UNKNOWN
