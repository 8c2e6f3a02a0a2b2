"""Every number of the one-host supervisor and its workers, once.

The life of a worker that stops beating, in seconds after its last heartbeat:

    0         15        30        45                  55
    |---------|---------|---------|-------------------|
    beat      (missed)  (missed)  heartbeat key gone  at the latest a health check saw it: SIGKILL

`MUSTER_TIMINGS="heartbeat_every=1 heartbeat_ttl=3"` shortens single numbers (in seconds). It reaches the
workers through their environment, so that the two sides cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta

from muster import blueprint
from muster.errors import Refused

VARIABLE = "MUSTER_TIMINGS"


@dataclass(frozen=True, slots=True)
class Timings:
    """The defaults are what production runs; tests shorten them."""

    #: The supervisor's lock: twice the 30 s it needs, so that one slow round does not lose it.
    supervisor_lock_ttl: timedelta = timedelta(seconds=60)
    #: One health round: renew the lock, then look at every worker.
    health_every: timedelta = timedelta(seconds=10)
    #: A worker older than this without a heartbeat is killed: twice the 30 s a beat may be late.
    silent_after: timedelta = timedelta(seconds=60)
    backoff_first: timedelta = blueprint.BACKOFF_FIRST
    backoff_max: timedelta = blueprint.BACKOFF_MAX
    #: How long a worker that was asked to leave may take before SIGKILL.
    shutdown_grace: timedelta = timedelta(seconds=30)

    #: Longer than the longest operation a strategy may be in (a bridge of 10 min and a transaction of 2 min).
    worker_lock_ttl: timedelta = timedelta(minutes=15)
    #: Heartbeat, lock renewal and state go out together.
    heartbeat_every: timedelta = timedelta(seconds=15)
    #: Three beats: two may be missed.
    heartbeat_ttl: timedelta = timedelta(seconds=45)
    state_ttl: timedelta = blueprint.STATE_TTL
    restarting_ttl: timedelta = blueprint.RESTARTING_TTL

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Timings:
        """The defaults, with what `MUSTER_TIMINGS` overrides."""
        names = {field.name for field in fields(cls)}
        changed = {}
        for word in environment.get(VARIABLE, "").split():
            name, _, seconds = word.partition("=")
            try:
                if name not in names:
                    raise ValueError(f"there is no timing called {name!r}")
                changed[name] = timedelta(seconds=float(seconds))
            except ValueError as bad:
                raise Refused(f"{VARIABLE}: {bad}; write 'name=seconds', names: {sorted(names)}") from bad
        return replace(cls(), **changed)


#: Respawns in a row that fail before a worker is given up; only a person starts it again.
GIVE_UP_AFTER = blueprint.GIVE_UP_AFTER
#: Rows of a worker's database older than this are pruned when it starts.
KEEP_ROWS = timedelta(days=90)
#: The pause between two cycles of a strategy, unless its entry or INTERVAL_SEC says otherwise.
INTERVAL_SEC = 900
API_PORT = blueprint.API.port
MARKET_PORT = 3002


def milliseconds(duration: timedelta) -> int:
    """A duration as the wire wants it."""
    return round(duration.total_seconds() * 1000)
