"""Pauses that grow between attempts, spread so that a thousand workers do not come back together."""

from __future__ import annotations

import random
from datetime import timedelta

from muster.clock import Clock

FIRST = timedelta(milliseconds=500)
MOST = timedelta(seconds=30)


class Backoff:
    """When the next attempt is due. Each failure doubles the pause from FIRST to MOST, less up to a half."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._due = 0.0

    def wait(self, at_most: timedelta) -> timedelta:
        """Wait until the attempt is due, but no longer than `at_most`; what is left of the pause."""
        pause = min(self.left().total_seconds(), at_most.total_seconds())
        if pause > 0:
            self._clock.sleep(pause)
        return self.left()

    def left(self) -> timedelta:
        return timedelta(seconds=max(0.0, self._due - self._clock.monotonic()))

    def failed(self, asked: timedelta | None = None) -> timedelta:
        """An attempt failed. Returns the pause, which is never shorter than the broker asked for."""
        longest = min(MOST, FIRST * (1 << min(self._failures, 10)))
        spread = random.uniform(0.5, 1)  # noqa: S311 - to spread the load, not to keep a secret
        pause = max(longest * spread, asked or timedelta())
        self._failures += 1
        self._due = self._clock.monotonic() + pause.total_seconds()
        return pause

    def succeeded(self) -> None:
        self._failures = 0
        self._due = 0.0
