"""How often one bearer may ask: a bucket each for reads and for changes, shared by all processes.

The bucket lives in the store, so eight processes behind one balancer are one limit. A bearer found empty is
remembered here until there is something to have again, and refused without asking anybody. A store that is
away limits nobody: what needs it says so itself, and what does not goes on.
"""

from __future__ import annotations

import asyncio
import math
from hashlib import blake2b

from api.auth import Principal
from api.together import Together
from muster import steps
from muster.blueprint import API_LIMITS, CallBucket
from muster.clock import Clock, SystemClock
from muster.errors import TryLater

#: Bearers remembered as empty; forgetting them all only means asking the store again.
_REMEMBERED = 10_000


class Limits:
    """For one event loop."""

    def __init__(self, store: Together, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._empty: dict[str, float] = {}

    def take(self, who: Principal, *, change: bool) -> Taken:
        """Ask for one; the answer travels with whatever else is asked of the store at this moment."""
        limit = API_LIMITS[who.role.value]
        rate = limit.changes if change else limit.reads
        # A digest: a subject may hold anything, a key may not.
        name = f"{who.role.value}:{blake2b(who.subject.encode(), digest_size=16).hexdigest()}"
        bucket = CallBucket(f"api:{'changes' if change else 'reads'}:{name}", rate.burst, rate.per_second)
        until = self._empty.get(bucket.name)
        if until is not None and (left := until - self._clock.monotonic()) > 0:
            return Taken(self, bucket.name, None, left)
        self._empty.pop(bucket.name, None)
        return Taken(self, bucket.name, self._store.soon(steps.take_budget(bucket, 1, 0)), 0)

    def found_empty(self, name: str, seconds: float) -> None:
        if len(self._empty) >= _REMEMBERED:
            self._empty.clear()
        self._empty[name] = self._clock.monotonic() + seconds


class Taken:
    """One ask, under way."""

    def __init__(
        self, limits: Limits, name: str, answer: asyncio.Future[tuple[str, ...]] | None, left: float
    ) -> None:
        self._limits, self._name, self._answer, self._left = limits, name, answer, left

    @property
    def refused(self) -> bool:
        """Known without asking."""
        return self._answer is None

    async def wait_s(self) -> int:
        """Whole seconds until there is one to have; 0: it was had."""
        if self._answer is not None:
            try:
                tag, *rest = await self._answer
            except TryLater:
                return 0
            if tag == "granted":
                return 0
            self._left = int(rest[0]) / 1000
            self._limits.found_empty(self._name, self._left)
        return max(1, math.ceil(self._left))
