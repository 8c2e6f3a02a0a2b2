"""What an owner does with jobs: create, cancel, resume, rerun, redrive, pin."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

from muster.errors import Refused
from muster.jobs.model import JobStatus, NewJob, WorkItem
from muster.jobs.ports import Jobs

log = logging.getLogger(__name__)

#: Called with the pool after work was added: a check, or a trigger (see `muster.jobs.triggers`).
WorkAdded = Callable[[str], None]


class NoSuchJob(Refused):
    """No job of this id is in the pool. It may have been forgotten after its retention."""


def enqueue(jobs: Jobs, pool: str, new: Sequence[NewJob], work_added: WorkAdded) -> list[str]:
    """Push the jobs, then wake the pool. Once pushed they are safe, whatever the trigger does."""
    ids = jobs.work.pool(pool).push_many(new)
    _wake(pool, work_added)
    return ids


def find(jobs: Jobs, pool: str, job_id: str) -> WorkItem:
    """The job, or `NoSuchJob`."""
    job = jobs.work.pool(pool).get(job_id)
    if job is None:
        raise NoSuchJob(f"pool {pool} has no job {job_id}; 'muster jobs ls {pool}' shows what it has")
    return job


def cancel(jobs: Jobs, pool: str, job_id: str) -> JobStatus:
    """Cancel a pending job, or ask the running one to stop. The status after."""
    find(jobs, pool, job_id)
    status = jobs.work.pool(pool).cancel(job_id)
    if status in (JobStatus.DONE, JobStatus.POISONED):
        raise Refused(f"job {job_id} is already {status}; there is nothing to cancel")
    return status or JobStatus.CANCELLED


def resume(jobs: Jobs, pool: str, job_id: str, work_added: WorkAdded) -> None:
    """Send a cancelled or poisoned job round again; it continues from its checkpoint."""
    job = find(jobs, pool, job_id)
    if not jobs.work.pool(pool).requeue(job_id):
        hint = "rerun it instead" if job.status is JobStatus.DONE else "it is already on its way"
        raise Refused(f"job {job_id} is {job.status}; {hint}")
    _wake(pool, work_added)


def rerun(jobs: Jobs, pool: str, job_id: str, work_added: WorkAdded) -> str:
    """A new job with the same work, from the beginning, linked to the old one; its id."""
    job = find(jobs, pool, job_id)
    new = NewJob(
        job.data,
        kind=job.kind,
        priority=job.priority,
        max_retries=job.max_retries,
        time_limit=job.time_limit,
        parent=job.id,
    )
    return enqueue(jobs, pool, [new], work_added)[0]


def redrive(jobs: Jobs, pool: str, work_added: WorkAdded) -> list[str]:
    """Send every poisoned job round again; their ids."""
    work = jobs.work.pool(pool)
    poisoned = work.list(JobStatus.POISONED, limit=work.counts().poisoned)
    sent = [job.id for job in poisoned if work.requeue(job.id)]
    if sent:
        _wake(pool, work_added)
    return sent


def pin(jobs: Jobs, pool: str, image: str | None) -> None:
    """New workers of the pool use this image or task definition. Running ones are never touched."""
    work = jobs.work.pool(pool)
    work.configure(replace(work.settings(), pin=image))


def limit(jobs: Jobs, pool: str, max_workers: int) -> None:
    """At most this many live workers from the next check on."""
    work = jobs.work.pool(pool)
    work.configure(replace(work.settings(), max_workers=max_workers))


def _wake(pool: str, work_added: WorkAdded) -> None:
    """Best effort: the job is durable, so a wake that fails must not look like a push that failed."""
    try:
        work_added(pool)
    except Exception as error:  # noqa: BLE001 - see above; the slow schedule is the safety net
        log.warning("pool %s was not woken, the next check will do it: %s", pool, error)
