"""The words of a job pool: what a job is, the states it goes through, and the rules between them.

          push                    turn (claim)                 turn (complete)
(nothing) ----> pending --------------------------> claimed ------------------> done
                 ^  ^                                 |  |
                 |  '-- settle: retry, release, return'  '-- settle: no attempt left --> poisoned
                 '------ requeue (resume, redrive) <--- poisoned, cancelled <--- cancel
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Any, NamedTuple

#: What a pool may be called: braces would break its hash tag, slashes its folder.
POOL_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

HEARTBEAT = timedelta(seconds=30)  #: a worker says it is alive this often
STALE_AFTER = 2 * HEARTBEAT  #: no heartbeat for this long: the worker is lost
VISIBILITY = 2 * HEARTBEAT  #: a claim lives this long unless a heartbeat extends it
#: A launched worker that has not registered by then never will (a cold start on AWS takes minutes).
LAUNCH_PATIENCE = timedelta(minutes=5)
MAX_WORKERS = 10  #: live workers of one pool, unless the pool says otherwise
MAX_RETRIES = 3  #: attempts before a job is poisoned
RETRY_FIRST = timedelta(seconds=1)  #: the first retry waits this long, each later one twice as long
RETRY_MAX = timedelta(minutes=5)
IDLE_EXIT = timedelta(seconds=30)  #: a worker that found nothing for this long leaves
TIME_LIMIT = timedelta(hours=6)  #: a day of real-model backtest takes 80 minutes; nothing honest takes this
RETENTION = timedelta(days=7)  #: results are kept this long
POISON_RETENTION = timedelta(days=14)  #: as long as any dead-letter queue of the system
HISTORY_MAX = 100_000  #: finished jobs kept per pool, whatever their age
SAFETY_CHECK = timedelta(minutes=5)  #: the slow schedule of the capacity check and the reaper


class JobStatus(StrEnum):
    PENDING = "pending"  #: waits to be claimed (now, or after its delay)
    CLAIMED = "claimed"  #: one worker holds it, until its visibility ends
    DONE = "done"  #: its result was accepted
    POISONED = "poisoned"  #: failed `max_retries` times; only a person sends it round again
    CANCELLED = "cancelled"  #: somebody did not want it any more


FINISHED = frozenset({JobStatus.DONE, JobStatus.POISONED, JobStatus.CANCELLED})


class WorkerStatus(StrEnum):
    STARTING = "starting"  #: asked for, not heard of yet; counts as live so that nobody asks twice
    ACTIVE = "active"  #: running and claiming
    TERMINATING = "terminating"  #: told to stop; finishes or returns its job
    TERMINATED = "terminated"  #: left cleanly
    LOST = "lost"  #: missed its heartbeats; its id is never valid again


LIVE = frozenset({WorkerStatus.STARTING, WorkerStatus.ACTIVE, WorkerStatus.TERMINATING})


class Verdict(StrEnum):
    """Why a claim ends without a result. It decides where the job goes."""

    FAIL = "fail"  #: the processor failed: try again after a backoff, or poison
    RELEASE = "release"  #: the worker is gone: try again now, or poison
    RETURN = "return"  #: the worker must leave: the attempt does not count
    CANCEL = "cancel"  #: the processor stopped because it was asked to


def settle(verdict: Verdict, attempts: int, max_retries: int, cancel_requested: bool) -> JobStatus:
    """Where a job goes when its claim ends without a result. `lua/settle.lua` holds the same rule."""
    if verdict is Verdict.CANCEL or cancel_requested:
        return JobStatus.CANCELLED
    if verdict is not Verdict.RETURN and attempts >= max_retries:
        return JobStatus.POISONED
    return JobStatus.PENDING


def retry_delay(attempts: int) -> float:
    """Seconds before attempt `attempts + 1`: 1, 2, 4 ... at most five minutes."""
    return float(min(RETRY_FIRST.total_seconds() * 2 ** min(attempts - 1, 30), RETRY_MAX.total_seconds()))


@dataclass(frozen=True, slots=True)
class NewJob:
    """A job to push. `data` is anything JSON can say; `kind` names its processor."""

    data: Any
    kind: str = "echo"
    priority: int = 0  #: higher goes first; equal ones in the order of their push
    delay: float = 0.0  #: seconds before it may run
    dedup: str | None = None  #: while a job with this key is pending or claimed, a push returns that job
    max_retries: int = MAX_RETRIES
    time_limit: float | None = None  #: seconds; None leaves it to the worker
    parent: str | None = None  #: the job this one repeats


@dataclass(slots=True)
class WorkItem:
    """A job as the backend knows it. Times are seconds since 1970; `token` names the claim."""

    id: str
    pool: str
    data: Any
    kind: str = "echo"
    status: JobStatus = JobStatus.PENDING
    attempts: int = 0
    max_retries: int = MAX_RETRIES
    token: int = 0
    claimed_by: str | None = None
    claimed_at: float | None = None
    priority: int = 0
    run_at: float | None = None
    created_at: float = 0.0
    finished_at: float | None = None
    cancel_requested: bool = False
    dedup: str | None = None
    time_limit: float | None = None
    parent: str | None = None
    result: Any = None
    error: str | None = None
    progress: Mapping[str, Any] | None = None
    checkpoint: Any = None


class Finished(NamedTuple):
    """A result to hand in, with the token of the claim it was made under."""

    id: str
    token: int
    result: Any = None


class Turn(NamedTuple):
    """The answer of one turn: which results were accepted (in order), and the jobs claimed next."""

    accepted: list[bool]
    claimed: list[WorkItem]


@dataclass(frozen=True, slots=True)
class Held:
    """A claim a worker still holds, and whether somebody asked to cancel it."""

    id: str
    token: int
    cancel_requested: bool


#: Names for lists, because the ports have a method called `list`.
Ids = list[str]
Items = list[WorkItem]
Claims = list[Held]
Outcomes = list[JobStatus | None]


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """What a pool's owner decided. New workers use `pin` (an image or task definition)."""

    max_workers: int = MAX_WORKERS
    pin: str | None = None


@dataclass(frozen=True, slots=True)
class Counts:
    """How many jobs the pool keeps in each state; `late` counts results that came after their claim ended."""

    pending: int = 0
    claimed: int = 0
    done: int = 0
    poisoned: int = 0
    cancelled: int = 0
    late: int = 0
    oldest_pending_s: float = 0.0  #: how long the oldest pending job has waited

    @property
    def open(self) -> int:
        """Jobs that still want a worker."""
        return self.pending + self.claimed


@dataclass(frozen=True, slots=True)
class WorkerRegistration:
    """Who a worker is. `pool` is None for workers that serve any pool."""

    worker_id: str
    host: str | None = None
    pid: int | None = None
    capabilities: tuple[str, ...] = ()
    pool: str | None = None
    started_at: float | None = None  #: None: now


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker as the registry knows it."""

    worker_id: str
    status: WorkerStatus
    last_heartbeat: float
    started_at: float
    host: str | None = None
    pid: int | None = None
    capabilities: tuple[str, ...] = ()
    pool: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def current_task_id(self) -> str | None:
        """The job it said it was on with its last heartbeat."""
        return self.metadata.get("current_task_id")


@dataclass(frozen=True, slots=True)
class WorkerFilter:
    """Which workers to list. Every condition given must hold."""

    status: WorkerStatus | frozenset[WorkerStatus] | None = None
    capability: str | None = None
    pool: str | None = None
    stale_threshold_seconds: float | None = None

    def admits(self, worker: WorkerRecord, now: float) -> bool:
        wanted = {self.status} if isinstance(self.status, WorkerStatus) else self.status
        return (
            (wanted is None or worker.status in wanted)
            and (self.capability is None or self.capability in worker.capabilities)
            and (self.pool is None or worker.pool == self.pool)
            and (
                self.stale_threshold_seconds is None
                or now - worker.last_heartbeat > self.stale_threshold_seconds
            )
        )


Workers = list[WorkerRecord]
