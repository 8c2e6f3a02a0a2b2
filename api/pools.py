"""What the API says about job pools, field by field. Every field is always there: null says there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from muster.jobs import Jobs, JobStatus, WorkerFilter, WorkerRecord, WorkerStatus
from muster.jobs.capacity import wanted_workers
from muster.jobs.model import LIVE, WorkItem


@dataclass(frozen=True, slots=True)
class JobPoolView:
    """One pool: how many jobs it keeps in each state, what its owner decided, who is there."""

    pool: str
    pending: int
    claimed: int
    done: int
    poisoned: int
    cancelled: int
    late: int  #: results that came after their claim had ended
    oldest_pending_s: float  #: how long the oldest pending job has waited
    max_workers: int
    pin: str | None  #: what new workers are started from; null is the default
    workers: int  #: live ones, starting and terminating ones counted


@dataclass(frozen=True, slots=True)
class JobView:
    """Everything about one job. Times are seconds since 1970."""

    id: str
    pool: str
    data: Any
    kind: str
    status: JobStatus
    attempts: int
    max_retries: int
    token: int  #: names the claim
    claimed_by: str | None
    claimed_at: float | None
    priority: int
    run_at: float | None
    created_at: float
    finished_at: float | None
    cancel_requested: bool
    dedup: str | None
    time_limit: float | None
    parent: str | None  #: the job this one repeats
    result: Any
    error: str | None
    progress: Mapping[str, Any] | None
    checkpoint: Any


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some jobs, newest first. `next` is the `before` of the page after; null is the last page."""

    jobs: list[JobView]
    next: str | None


@dataclass(frozen=True, slots=True)
class JobIds:
    """The jobs that were pushed, or sent round again."""

    pool: str
    ids: list[str]


@dataclass(frozen=True, slots=True)
class JobState:
    """What a job is after the request."""

    id: str
    status: JobStatus


@dataclass(frozen=True, slots=True)
class JobRerun:
    """The new job, and the one it repeats."""

    id: str
    parent: str


@dataclass(frozen=True, slots=True)
class PoolCheck:
    """What a check saw and did. `asked`: somebody else was asked to launch what is missing."""

    pool: str
    lost: list[str]
    released: int
    trimmed: int
    wanted: int
    launched: list[str]
    failed: list[str]  #: why each launch that did not happen did not
    asked: bool


@dataclass(frozen=True, slots=True)
class PoolCheckPlan:
    """What a check would do."""

    pool: str
    wanted: int
    live: int
    would_launch: int


@dataclass(frozen=True, slots=True)
class PoolReap:
    """What the reaper did: workers marked lost, claims ended, finished jobs forgotten."""

    pool: str
    lost: list[str]
    released: int
    trimmed: int


@dataclass(frozen=True, slots=True)
class PoolReapPlan:
    """Whom the reaper would mark lost."""

    pool: str
    would_lose: list[str]


@dataclass(frozen=True, slots=True)
class PoolPin:
    """What new workers are started from; null is the default."""

    pool: str
    pin: str | None


@dataclass(frozen=True, slots=True)
class PoolLimit:
    """The most live workers of the pool."""

    pool: str
    max_workers: int


@dataclass(frozen=True, slots=True)
class JobWorkerView:
    """A job worker as the registry knows it. Times are seconds since 1970."""

    worker_id: str
    status: WorkerStatus
    last_heartbeat: float
    started_at: float
    host: str | None
    pid: int | None
    capabilities: list[str]
    pool: str | None
    metadata: Mapping[str, Any]
    current_task_id: str | None  #: the job it said it was on with its last heartbeat


def pool_view(jobs: Jobs, pool: str) -> JobPoolView:
    work = jobs.work.pool(pool)
    return JobPoolView(
        pool=pool, **asdict(work.counts()), **asdict(work.settings()), workers=len(live_workers(jobs, pool))
    )


def job_view(job: WorkItem) -> JobView:
    return JobView(**asdict(job))


def worker_view(worker: WorkerRecord) -> JobWorkerView:
    told = asdict(worker) | {"capabilities": [*worker.capabilities]}
    return JobWorkerView(**told, current_task_id=worker.current_task_id)


def check_plan(jobs: Jobs, pool: str) -> PoolCheckPlan:
    """How many workers the pool's jobs want, and how many live, starting ones counted."""
    work = jobs.work.pool(pool)
    wanted = wanted_workers(work.size(), work.running(), work.settings().max_workers)
    live = len(live_workers(jobs, pool))
    return PoolCheckPlan(pool, wanted, live, max(0, wanted - live))


def live_workers(jobs: Jobs, pool: str) -> list[WorkerRecord]:
    return jobs.registration.list(WorkerFilter(status=LIVE, pool=pool))
