"""The reaper: who is stale is lost, and what the lost held goes back to the pool."""

from __future__ import annotations

from dataclasses import dataclass

from muster.clock import Clock
from muster.jobs.model import (
    HISTORY_MAX,
    LAUNCH_PATIENCE,
    LIVE,
    POISON_RETENTION,
    RETENTION,
    STALE_AFTER,
    WorkerFilter,
    WorkerRecord,
    WorkerStatus,
)
from muster.jobs.ports import Jobs


@dataclass(frozen=True, slots=True)
class Reaped:
    """What one pass did: workers marked lost, claims ended, finished jobs forgotten."""

    lost: list[str]
    released: int
    trimmed: int


def is_stale(worker: WorkerRecord, now: float, stale_after: float, launch_patience: float) -> bool:
    """Silent for too long. One that is only starting gets the longer patience of a launch."""
    patience = launch_patience if worker.status is WorkerStatus.STARTING else stale_after
    return worker.status in LIVE and now - worker.last_heartbeat > patience


def reap(
    jobs: Jobs,
    pool: str,
    clock: Clock,
    stale_after: float = STALE_AFTER.total_seconds(),
    launch_patience: float = LAUNCH_PATIENCE.total_seconds(),
    *,
    trim: bool = True,
) -> Reaped:
    """One pass over one pool. Safe to run from anywhere, any number at once.

    Lost first, then release: a worker that comes back between the two finds itself lost and leaves.
    A pass that dies between the two loses nothing, because the claims also end by their visibility.
    """
    work = jobs.work.pool(pool)
    now = clock.now()
    lost = []
    released = 0
    for worker in jobs.registration.list(WorkerFilter(status=LIVE, pool=pool)):
        if is_stale(worker, now, stale_after, launch_patience) and jobs.registration.lose(
            worker.worker_id, worker.last_heartbeat
        ):
            lost.append(worker.worker_id)
            released += work.release_by_worker(worker.worker_id)
    released += work.release_expired()
    trimmed = 0
    if trim:
        trimmed = work.trim(RETENTION.total_seconds(), POISON_RETENTION.total_seconds(), HISTORY_MAX)
        jobs.registration.forget(RETENTION.total_seconds())
    return Reaped(lost, released, trimmed)
