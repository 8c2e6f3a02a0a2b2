"""Job pools over HTTP. Errors are raised as they are; the app turns them into problem+json."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from api.access import of_the_fleet
from api.pools import (
    JobIds,
    JobPage,
    JobPoolView,
    JobRerun,
    JobState,
    JobView,
    JobWorkerView,
    PoolCheck,
    PoolCheckPlan,
    PoolLimit,
    PoolPin,
    PoolReap,
    PoolReapPlan,
    check_plan,
    job_view,
    live_workers,
    pool_view,
    worker_view,
)
from api.source import NotFound
from muster.clock import SystemClock
from muster.jobs import Jobs, JobStatus, NewJob, WorkerFilter
from muster.jobs import service as owner
from muster.jobs.capacity import Capacity, Launch, ProcessLauncher, check, interpreter
from muster.jobs.model import FINISHED, LAUNCH_PATIENCE, MAX_RETRIES, POOL_NAME, STALE_AFTER, WorkItem
from muster.jobs.reaper import is_stale, reap

PoolName = Annotated[str, Path(pattern=POOL_NAME)]
JobId = Annotated[str, Path(pattern=r"^[0-9]{1,18}$")]
StaleAfter = Annotated[float, Query(ge=0, description="Seconds of silence.")]
#: Given the check of a pool: what to call when one got work.
Wake = Callable[[owner.WorkAdded], owner.WorkAdded]
BATCH_MAX = 1000
_STALE_S = STALE_AFTER.total_seconds()
_LAUNCH_PATIENCE_S = LAUNCH_PATIENCE.total_seconds()
_LOOK_S = 0.25  # how often the event stream looks
_KEEPALIVE_S = 15.0  # a comment line, so that proxies keep a quiet stream open


class PushedJob(BaseModel):
    """One job to push."""

    model_config = ConfigDict(extra="forbid")
    data: Any = None
    type: str = Field("echo", max_length=100)
    priority: int = Field(0, ge=-(2**31), le=2**31)
    delay: float = Field(0.0, ge=0, le=366 * 86400)
    dedup: str | None = Field(None, min_length=1, max_length=200)
    max_retries: int = Field(MAX_RETRIES, ge=1, le=1000)
    time_limit: float | None = Field(None, gt=0)

    def new(self) -> NewJob:
        return NewJob(
            self.data, self.type, self.priority, self.delay, self.dedup, self.max_retries, self.time_limit
        )


class PushedBatch(BaseModel):
    """Many jobs to push, in one step."""

    model_config = ConfigDict(extra="forbid")
    jobs: list[PushedJob] = Field(min_length=1, max_length=BATCH_MAX)


class Pin(BaseModel):
    """The image or task definition of new workers; null removes the pin."""

    image: str | None = Field(None, max_length=500)


class Limit(BaseModel):
    """The most live workers of a pool."""

    max_workers: int = Field(ge=0, le=10_000)


def router(
    jobs: Jobs,
    launch: Launch | None = None,
    wake: Wake | None = None,
    ask: Callable[[str], None] | None = None,
) -> APIRouter:
    """The routes under /v1/pools. Workers are launched by `launch`, as processes by default; where another
    launches them, `ask` makes it look at a pool now, and raises if that did not reach it.

    `wake` makes of the check what every pool that got work is told; by default it is checked at once.
    """
    start = launch or ProcessLauncher(jobs.url)
    clock = SystemClock()
    routes = APIRouter(prefix="/v1/pools", tags=["jobs"], dependencies=[Depends(of_the_fleet)])

    def look_at(pool: str, stale_after: float, *, trim: bool) -> PoolCheck:
        if ask is None:
            done = check(jobs, pool, start, clock, stale_after, trim=trim)
            return PoolCheck(pool, **asdict(done.reaped), **asdict(done.capacity), asked=False)
        reaped = reap(jobs, pool, clock, stale_after, trim=trim)
        plan = check_plan(jobs, pool)
        if plan.would_launch:
            ask(pool)
        capacity = Capacity(plan.wanted, [])  # whom it launches is known only to who was asked
        return PoolCheck(pool, **asdict(reaped), **asdict(capacity), asked=plan.would_launch > 0)

    def check_at_once(pool: str) -> None:
        look_at(pool, _STALE_S, trim=False)

    work_added = wake(check_at_once) if wake else check_at_once

    def known(pool: str, job_id: str) -> WorkItem:
        try:
            return owner.find(jobs, pool, job_id)
        except owner.NoSuchJob as missing:
            raise NotFound(str(missing)) from missing

    @routes.get("", summary="Every pool: its jobs by state, its limit, its pin, its live workers")
    def list_pools() -> list[JobPoolView]:
        return [pool_view(jobs, name) for name in jobs.work.pools()]

    @routes.get("/{pool}", summary="One pool: its jobs by state, its limit, its pin, its live workers")
    def describe(pool: PoolName) -> JobPoolView:
        return pool_view(jobs, pool)

    @routes.post(
        "/{pool}/jobs", status_code=202, summary="Push one job or many, and see that somebody works on them"
    )
    def push(
        pool: PoolName,
        body: PushedBatch | PushedJob,
        check: Annotated[bool, Query(description="Launch the workers that are missing.")] = True,
    ) -> JobIds:
        new = [job.new() for job in body.jobs] if isinstance(body, PushedBatch) else [body.new()]
        return JobIds(pool, owner.enqueue(jobs, pool, new, work_added if check else _nobody))

    @routes.get("/{pool}/jobs", summary="A pool's jobs, newest first")
    def list_jobs(
        pool: PoolName,
        status: JobStatus | None = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
        before: Annotated[str | None, Query(pattern=r"^[0-9]{1,18}$")] = None,
    ) -> JobPage:
        page = jobs.work.pool(pool).list(status, limit=limit, before=before)
        following = page[-1].id if len(page) == limit else None
        return JobPage([job_view(job) for job in page], following)

    @routes.get("/{pool}/jobs/{job_id}", summary="Everything about one job")
    def show(pool: PoolName, job_id: JobId) -> JobView:
        return job_view(known(pool, job_id))

    @routes.get(
        "/{pool}/jobs/{job_id}/events",
        summary="A job's progress until its end (server-sent events)",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}, "description": "`progress` per change, then `end`."}
        },
    )
    def events(pool: PoolName, job_id: JobId) -> StreamingResponse:
        known(pool, job_id)
        return StreamingResponse(_events(jobs, pool, job_id), media_type="text/event-stream")

    @routes.post("/{pool}/jobs/{job_id}/cancel", summary="Cancel a waiting job, or ask a running one to stop")
    def cancel(pool: PoolName, job_id: JobId) -> JobState:
        known(pool, job_id)
        return JobState(job_id, owner.cancel(jobs, pool, job_id))

    @routes.post(
        "/{pool}/jobs/{job_id}/resume", summary="Continue a cancelled or poisoned job from its checkpoint"
    )
    def resume(pool: PoolName, job_id: JobId) -> JobState:
        known(pool, job_id)
        owner.resume(jobs, pool, job_id, work_added)
        return JobState(job_id, JobStatus.PENDING)

    @routes.post(
        "/{pool}/jobs/{job_id}/rerun",
        status_code=202,
        summary="The same work as a new job, from the beginning",
    )
    def rerun(pool: PoolName, job_id: JobId) -> JobRerun:
        known(pool, job_id)
        return JobRerun(owner.rerun(jobs, pool, job_id, work_added), job_id)

    @routes.post(
        "/{pool}/check", summary="Reap, then launch the workers the pool lacks, or have them launched"
    )
    def check_now(
        pool: PoolName, stale_after: StaleAfter = _STALE_S, dry_run: bool = False
    ) -> PoolCheck | PoolCheckPlan:
        if dry_run:
            return check_plan(jobs, pool)
        return look_at(pool, stale_after, trim=True)

    @routes.post("/{pool}/reap", summary="Mark stale workers lost and send their jobs back")
    def reap_now(
        pool: PoolName, stale_after: StaleAfter = _STALE_S, dry_run: bool = False
    ) -> PoolReap | PoolReapPlan:
        if dry_run:
            now = clock.now()
            live = live_workers(jobs, pool)
            stale = [w.worker_id for w in live if is_stale(w, now, stale_after, _LAUNCH_PATIENCE_S)]
            return PoolReapPlan(pool, stale)
        return PoolReap(pool, **asdict(reap(jobs, pool, clock, stale_after)))

    @routes.post("/{pool}/redrive", summary="Send every poisoned job round again")
    def redrive(pool: PoolName) -> JobIds:
        return JobIds(pool, owner.redrive(jobs, pool, work_added))

    @routes.put("/{pool}/pin", summary="Choose what new workers are started from")
    def pin(pool: PoolName, body: Pin) -> PoolPin:
        if body.image is not None and ask is None and isinstance(start, ProcessLauncher):
            interpreter(body.image)  # what no worker here could be started from is refused now
        owner.pin(jobs, pool, body.image)
        return PoolPin(pool, body.image)

    @routes.put("/{pool}/limit", summary="Set the most live workers")
    def limit(pool: PoolName, body: Limit) -> PoolLimit:
        owner.limit(jobs, pool, body.max_workers)
        return PoolLimit(pool, body.max_workers)

    @routes.get("/{pool}/workers", summary="A pool's workers and what they are doing")
    def workers(pool: PoolName, gone: bool = True) -> list[JobWorkerView]:
        found = jobs.registration.list(WorkerFilter(pool=pool)) if gone else live_workers(jobs, pool)
        return [worker_view(worker) for worker in found]

    return routes


def _nobody(pool: str) -> None:
    """Somebody else checks."""


async def _events(jobs: Jobs, pool: str, job_id: str) -> AsyncIterator[str]:
    """One `progress` event per change, then one `end`. A job forgotten meanwhile ends the stream."""
    work = jobs.work.pool(pool)
    last, spoke = "", time.monotonic()
    while (job := await asyncio.to_thread(work.get, job_id)) is not None:
        text = json.dumps(_progress(job))
        if text != last or time.monotonic() - spoke > _KEEPALIVE_S:
            yield f"event: progress\ndata: {text}\n\n" if text != last else ": still here\n\n"
            last, spoke = text, time.monotonic()
        if job.status in FINISHED:
            ended = {"status": job.status, "result": job.result, "error": job.error}
            yield f"event: end\ndata: {json.dumps(ended)}\n\n"
            return
        await asyncio.sleep(_LOOK_S)


def _progress(job: WorkItem) -> dict[str, Any]:
    return {"id": job.id, "status": job.status, "attempts": job.attempts, **(job.progress or {})}
