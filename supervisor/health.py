"""What to do with one worker: the health rules, as one pure function.

The rules of a health round, in its order:

1. renew the supervisor's lock, or leave (supervisor/supervisor.py)
2. read the heartbeat of every worker: what `Seen` holds
3. a worker that exited is respawned after 20 s, 40 s, 80 s ... 5 min; given up after 20 failures in a row
4. a worker older than 60 s without a heartbeat is killed; the next look finds it exited
5. a healthy heartbeat forgets the failures and the backoff
6. an error in the published state is a warning, never a kill

A restart somebody asked for respawns at once, without backoff.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from supervisor.timings import GIVE_UP_AFTER, Timings


class Want(StrEnum):
    RUNNING = "running"  #: the file lists it: keep one process alive
    STOPPED = "stopped"  #: the file lists it, a person stopped it: none until a person starts it
    REMOVED = "removed"  #: no longer in the file: let it leave, then forget it


class Act(StrEnum):
    NOTHING = "nothing"
    SPAWN = "spawn"  #: start a process (or adopt the living one that holds the lock)
    ASK = "ask"  #: ask it to leave: SHUTDOWN and SIGTERM
    KILL = "kill"  #: SIGKILL
    FORGET = "forget"  #: nothing is left of it: drop it from the books


@dataclass(frozen=True, slots=True)
class Limits:
    """The numbers `decide` needs, in seconds."""

    silent_after: float
    beat: float
    grace: float
    backoff_first: float
    backoff_max: float
    give_up_after: int = GIVE_UP_AFTER

    @classmethod
    def of(cls, timings: Timings) -> Limits:
        def seconds(duration: timedelta) -> float:
            return duration.total_seconds()

        return cls(
            silent_after=seconds(timings.silent_after),
            beat=seconds(timings.heartbeat_every),
            grace=seconds(timings.shutdown_grace),
            backoff_first=seconds(timings.backoff_first),
            backoff_max=seconds(timings.backoff_max),
        )

    def backoff(self, failures: int) -> float:
        """The pause after the n-th failure in a row."""
        return min(self.backoff_first * 2.0 ** (failures - 1), self.backoff_max)


@dataclass(frozen=True, slots=True)
class Seen:
    """One worker as a health round finds it. All times are seconds of one monotonic clock."""

    want: Want
    alive: bool  #: its process runs
    spawned_at: float | None = None  #: when the process was started or adopted; None if there never was one
    heartbeat: float | None = None  #: when the heartbeat in the store was written
    trusted_since: float = 0.0  #: since when the store can be believed; it may have just been emptied
    failures: int = 0
    retry_at: float | None = None  #: None while running, and for an exit nobody has counted yet
    asked_at: float | None = None  #: when the process was asked to leave
    restarting: bool = False  #: a restart was asked for: by the flag, or by a changed entry
    error: str | None = None  #: the error in the published state


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do, and what the books say afterwards."""

    act: Act
    why: str
    failures: int = 0
    retry_at: float | None = None
    warning: str | None = None


def decide(seen: Seen, now: float, limits: Limits) -> Verdict:
    """The verdict on one worker."""
    return _alive(seen, now, limits) if seen.alive else _gone(seen, now, limits)


def _alive(seen: Seen, now: float, limits: Limits) -> Verdict:
    failures = seen.failures
    if seen.asked_at is not None:
        if now - seen.asked_at >= limits.grace:
            return Verdict(
                Act.KILL, f"asked to leave {now - seen.asked_at:.0f} s ago and still here", failures
            )
        return Verdict(Act.NOTHING, "leaving", failures)
    if seen.want is not Want.RUNNING:
        return Verdict(Act.ASK, f"{seen.want}", failures)
    if seen.restarting:
        return Verdict(Act.ASK, "a restart was asked for", failures)
    assert seen.spawned_at is not None
    # A heartbeat older than the process is its predecessor's: the key lives on for up to 45 s.
    if seen.heartbeat is None or seen.heartbeat < seen.spawned_at:
        silent = now - max(seen.spawned_at, seen.trusted_since)
        if silent > limits.silent_after:
            return Verdict(Act.KILL, f"no heartbeat for {silent:.0f} s", failures)
        return Verdict(Act.NOTHING, "waiting for its first heartbeat", failures)
    # One beat at the start proves little: a worker that crashes after it would never be given up.
    if seen.heartbeat >= seen.spawned_at + limits.beat:
        failures = 0
    return Verdict(Act.NOTHING, "healthy", failures, warning=seen.error)


def _gone(seen: Seen, now: float, limits: Limits) -> Verdict:
    if seen.want is Want.REMOVED:
        return Verdict(Act.FORGET, "removed from the file")
    if seen.want is Want.STOPPED:
        return Verdict(Act.NOTHING, "stopped by a person")
    if seen.spawned_at is None:
        return Verdict(Act.SPAWN, "new")
    if seen.restarting:
        return Verdict(Act.SPAWN, "a restart was asked for: no backoff")
    if seen.failures >= limits.give_up_after:
        return Verdict(Act.NOTHING, f"given up after {seen.failures} failures in a row", seen.failures)
    if seen.retry_at is None:
        failures = seen.failures + 1
        if failures >= limits.give_up_after:
            return Verdict(Act.NOTHING, f"given up after {failures} failures in a row", failures)
        pause = limits.backoff(failures)
        return Verdict(Act.NOTHING, f"exited; next try in {pause:g} s", failures, now + pause)
    if now < seen.retry_at:
        return Verdict(Act.NOTHING, "waiting for its next try", seen.failures, seen.retry_at)
    return Verdict(Act.SPAWN, f"try {seen.failures} of {limits.give_up_after}", seen.failures)
