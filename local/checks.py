"""Fill checks that are due later, as EventBridge Scheduler keeps them on AWS: a killed engine loses none."""

from __future__ import annotations

import hashlib
import time
from datetime import timedelta
from typing import Any

from muster.orders import FillCheck, parse_check
from muster.store import Store, command, text

#: zset check (JSON) -> due (ms). Only the engine of one machine has it, so it needs no slot of a user.
PLANNED = "local:checks"
#: Most checks one beat puts on the queue; the next beat goes on.
_AT_ONCE = 100


class PlannedChecks:
    """`plan` is repeatable; `send_due` runs on the engine's beat."""

    def __init__(self, store: Store, sqs: Any, queue_url: str, speed: float) -> None:
        self._store = store
        self._sqs = sqs
        self._url = queue_url
        self._speed = speed

    def plan(self, check: FillCheck, pause: timedelta) -> None:
        """The next look at an order, on its queue after `pause`. The first plan of a look counts."""
        due_ms = round((time.time() + pause.total_seconds() / self._speed) * 1000)
        self._store.one(command("ZADD", PLANNED, "NX", due_ms, check.body(), parse=int))

    def send_due(self) -> None:
        """Send, then forget: a crash in between sends again, and the queue drops the repeat by its id."""
        now_ms = round(time.time() * 1000)
        due = command("ZRANGEBYSCORE", PLANNED, "-inf", now_ms, "LIMIT", 0, _AT_ONCE, parse=list)
        for raw in self._store.one(due):
            body = text(raw)
            check = parse_check(body)
            self._sqs.send_message(
                QueueUrl=self._url,
                MessageBody=body,
                MessageGroupId=check.order_id,
                MessageDeduplicationId=hashlib.sha256(body.encode()).hexdigest(),
            )
            self._store.one(command("ZREM", PLANNED, body, parse=int))
