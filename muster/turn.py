"""A sweep's turn: one coordinator at a time, and one that dies holds up nobody for longer than its lease."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from muster import blueprint, steps
from muster.deps import Deps
from muster.errors import TryLater

T = TypeVar("T")
#: Renewed well before it ends, and not before every call.
_RENEW_S = blueprint.SWEEP_LEASE.total_seconds() / 3


class Turn:
    """The right of one run to coordinate, from `begin_sweep` on. Ask it to `go_on` between calls."""

    def __init__(self, deps: Deps, run_id: str) -> None:
        self._deps = deps
        self._run_id = run_id
        self._renewed_at = deps.clock.monotonic()

    def go_on(self) -> None:
        """Renew the lease when that is due. `TryLater`: this run was so slow that another has begun."""
        now = self._deps.clock.monotonic()
        if now - self._renewed_at < _RENEW_S:
            return
        tag, *other = self._deps.store.one(steps.keep_sweep(self._run_id))
        if tag == "lost":
            raise TryLater(f"the turn of this sweep has passed to {other[0] or 'nobody yet'}")
        self._renewed_at = now

    def over(self, things: Iterable[T]) -> Iterator[T]:
        """The same things, with a look at the lease before each of them."""
        for thing in things:
            self.go_on()
            yield thing
