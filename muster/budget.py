"""One budget for all AWS calls: a user's start before a repair, a repair before a refill."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum

from muster import steps
from muster.blueprint import CallBucket
from muster.errors import TryLater
from muster.store import Store


class Priority(Enum):
    """The share of the bucket that must be left for those who matter more."""

    START = 0.0
    REPAIR = 0.3
    REFILL = 0.6


class CallBudget:
    """Asked by a launcher before every AWS call. `START` never asks: no round trip, and it goes first."""

    def __init__(self, store: Store, priority: Priority) -> None:
        self._store = store
        self._priority = priority

    def __call__(self, bucket: CallBucket, calls: int) -> None:
        """Draw `calls` from the bucket, or raise `TryLater`: nothing was drawn, come back a little later."""
        if self._priority is Priority.START:
            return
        floor = round(bucket.burst * self._priority.value)
        tag, *rest = self._store.one(steps.take_budget(bucket, calls, floor))
        if tag == "wait":
            raise TryLater(
                f"the {bucket.name} budget is kept for more urgent calls; free in {rest[0]} ms",
                timedelta(milliseconds=int(rest[0])),
            )
