"""The worker's own view of its mark: may it act now? Measured on a clock that cannot be set back.

    0 s renew   10 s renew   20 s renew            25 s stop acting      30 s mark gone
    |-----------|------------|---------------------|---------------------|
                (renewals fail from here)          suspend side effects   exit

Every renewal counts from BEFORE it was sent: the store's lease started later, so it ends later too.
"""

from __future__ import annotations

from muster.blueprint import EXIT_AFTER, STOP_ACTING_AFTER
from muster.clock import Clock
from muster.errors import LostLease

_STOP_S = STOP_ACTING_AFTER.total_seconds()
_EXIT_S = EXIT_AFTER.total_seconds()
_NEVER = float("-inf")


class Lease:
    """Written by the heartbeat thread, read by everybody before a side effect."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._renewed_at = _NEVER
        self._ended = ""

    def renewed(self, sent_at: float) -> None:
        """A renewal that was sent at `sent_at` has been granted."""
        self._renewed_at = max(self._renewed_at, sent_at)

    def end(self, why: str) -> None:
        """The store said that this worker is out. There is no way back."""
        self._ended = self._ended or why

    @property
    def ended(self) -> str:
        """Why it is over for good, or nothing."""
        if not self._ended and self._renewed_at > _NEVER and self.seconds_left <= 0:
            self._ended = "the mark could not be renewed in time"
        return self._ended

    @property
    def seconds_left(self) -> float:
        """Until the mark is gone for sure."""
        return self._renewed_at + _EXIT_S - self._clock.monotonic()

    def may_act(self) -> bool:
        """Ask right before every side effect."""
        return not self.ended and self._clock.monotonic() - self._renewed_at < _STOP_S

    def require(self) -> None:
        """`may_act`, as an error for those who must not go on."""
        if not self.may_act():
            raise LostLease(self._ended or "the mark has not been renewed for too long")
