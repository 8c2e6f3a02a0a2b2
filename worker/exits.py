"""Why a worker process ended, as its exit code. A launcher restarts on anything but 0."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    DONE = 0  #: drained on request, or the pool had no place for it
    CRASHED = 1  #: an error nobody expected; see the log
    USAGE = 2  #: a setting is missing or wrong; the message says which
    STALE = 3  #: a newer command overtook this start before it took the mark
    FENCED = 4  #: a newer command overtook it while it served
    LEASE_LOST = 5  #: the mark could not be renewed in time
    SESSION_FAILED = 6  #: the session ended with an error
    REFUSED = 7  #: the session can never work (bad credentials); restarting will not help
