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
from muster.store import Step

#: Bearers remembered, as empty or by their bucket; forgetting them all only means asking again.
_REMEMBERED = 10_000
_Bucket = tuple[str, Step[tuple[str, ...]]]


class Limits:
    """For one event loop."""

    def __init__(self, store: Together, clock: Clock | None = None) -> None:
        self._store = store
        self._clock = clock or SystemClock()
        self._empty: dict[str, float] = {}
        #: The bucket of each bearer, of reads and of changes, and the step that draws from it.
        self._buckets: tuple[dict[Principal, _Bucket], dict[Principal, _Bucket]] = ({}, {})

    def take(self, who: Principal, *, change: bool) -> Taken:
        """Ask for one; the answer travels with whatever else is asked of the store at this moment."""
        known = self._buckets[change]
        name, step = known.get(who) or self._remember(known, who, change)
        if self._empty:
            until = self._empty.get(name)
            if until is not None and (left := until - self._clock.monotonic()) > 0:
                return Taken(self, name, None, left)
            self._empty.pop(name, None)
        return Taken(self, name, self._store.soon(step), 0)

    def _remember(self, known: dict[Principal, _Bucket], who: Principal, change: bool) -> _Bucket:
        limit = API_LIMITS[who.role.value]
        rate = limit.changes if change else limit.reads
        # A digest: a subject may hold anything, a key may not.
        name = f"{who.role.value}:{blake2b(who.subject.encode(), digest_size=16).hexdigest()}"
        bucket = CallBucket(f"api:{'changes' if change else 'reads'}:{name}", rate.burst, rate.per_second)
        if len(known) >= _REMEMBERED:
            known.clear()
        known[who] = found = (bucket.name, steps.take_budget(bucket, 1, 0))
        return found

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
