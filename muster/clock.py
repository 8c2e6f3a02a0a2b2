"""Time, injected: nothing in the core reads a clock of its own."""

from __future__ import annotations

import time
from typing import Protocol

_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Wall time for what is shared, monotonic time for what is measured, sleep for what waits."""

    def now(self) -> float:
        """Seconds since 1970. May jump; never use it for a lease."""
        ...

    def monotonic(self) -> float:
        """Seconds on a clock that only goes forward, also while the machine is suspended."""
        ...

    def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock."""
        ...


class SystemClock:
    """The machine's clocks. CLOCK_BOOTTIME counts through a suspend, so a lease cannot outlive a nap."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.clock_gettime(_BOOT)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FakeClock:
    """A clock that moves only when told. `sleep` moves it."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        self._now += seconds
