"""The async face: Muster's job backends for the classes of the PyPI package `flatmachines`, unchanged.

    jobs = muster.jobs.flatmachines.connect("sqlite:///jobs.db")
    hooks = flatmachines.DistributedWorkerHooks(registration=jobs.registration, work=jobs.work)

Their protocol has no claim token: this face remembers the token of every claim made through it, so a
result that comes after the reaper took the job away is ignored here as everywhere else. Every call
runs on a thread, so a busy database never blocks the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import flatmachines as fm

from muster.clock import Clock
from muster.jobs import connection
from muster.jobs.model import (
    MAX_RETRIES,
    Finished,
    NewJob,
    Verdict,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
    WorkerStatus,
    WorkItem,
)
from muster.jobs.ports import Jobs, WorkPool

log = logging.getLogger(__name__)

#: Their workers beat between states, not from a thread: a claim ends by the reaper, this is the last resort.
VISIBILITY = timedelta(days=1).total_seconds()


@dataclass(frozen=True, slots=True)
class AsyncJobs:
    """What `connect` gives: `.work` and `.registration`, as their protocols want them."""

    work: AsyncWork
    registration: AsyncRegistration


def connect(url: str, clock: Clock | None = None) -> AsyncJobs:
    """The same URLs as `muster.jobs.connect`."""
    jobs = connection.connect(url, clock)
    return AsyncJobs(AsyncWork(jobs), AsyncRegistration(jobs))


class AsyncPool:
    """`flatmachines.WorkPool` on one of our pools."""

    def __init__(self, pool: WorkPool) -> None:
        self.name = pool.name
        self._pool = pool
        self._claims: dict[str, WorkItem] = {}

    async def push(self, item: Any, options: dict[str, Any] | None = None) -> str:
        """Options are the fields of `NewJob`; theirs knows only max_retries."""
        new = replace(NewJob(item, max_retries=MAX_RETRIES), **(options or {}))
        return (await asyncio.to_thread(self._pool.push_many, [new]))[0]

    async def claim(self, worker_id: str) -> Any:
        job = await asyncio.to_thread(self._pool.claim, worker_id, VISIBILITY)
        if job is None:
            return None
        self._claims[job.id] = job
        return fm.WorkItem(
            id=job.id,
            data=job.data,
            claimed_by=job.claimed_by,
            attempts=job.attempts,
            max_retries=job.max_retries,
            status=job.status.value,
            created_at=_iso(job.created_at),
            claimed_at=_iso(job.claimed_at or job.created_at),
        )

    async def complete(self, item_id: str, result: Any = None) -> None:
        """KeyError when the job was not claimed here; a result that came too late is dropped and counted."""
        job = self._taken(item_id)
        done = [Finished(job.id, job.token, result)]
        turn = await asyncio.to_thread(self._pool.turn, job.claimed_by or "", done, 0)
        if not turn.accepted[0]:
            log.warning("result of job %s came after its claim ended; dropped", item_id)

    async def fail(self, item_id: str, error: str | None = None) -> None:
        """KeyError when the job was not claimed here."""
        job = self._taken(item_id)
        await asyncio.to_thread(self._pool.settle, [(job.id, job.token)], Verdict.FAIL, error)

    async def size(self) -> int:
        return await asyncio.to_thread(self._pool.size)

    async def release_by_worker(self, worker_id: str) -> int:
        return await asyncio.to_thread(self._pool.release_by_worker, worker_id)

    def _taken(self, item_id: str) -> WorkItem:
        try:
            return self._claims.pop(item_id)
        except KeyError:
            raise KeyError(f"Work item {item_id} not found: it was not claimed by this process") from None


class AsyncWork:
    """`flatmachines.WorkBackend`. One face per pool, because the face holds the tokens."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._pools: dict[str, AsyncPool] = {}

    def pool(self, name: str) -> AsyncPool:
        if name not in self._pools:
            self._pools[name] = AsyncPool(self._jobs.work.pool(name))
        return self._pools[name]


class AsyncRegistration:
    """`flatmachines.RegistrationBackend` on ours."""

    def __init__(self, jobs: Jobs) -> None:
        self._registration = jobs.registration

    async def register(self, worker: Any) -> Any:
        ours = WorkerRegistration(
            worker.worker_id,
            worker.host,
            worker.pid,
            tuple(worker.capabilities or ()),
            started_at=datetime.fromisoformat(worker.started_at).timestamp(),
        )
        return _record(await asyncio.to_thread(self._registration.register, ours))

    async def heartbeat(self, worker_id: str, metadata: dict[str, Any] | None = None) -> None:
        """KeyError when unknown or lost: a lost worker must register anew."""
        status = await asyncio.to_thread(self._registration.heartbeat, worker_id, metadata)
        if status is WorkerStatus.LOST:
            raise KeyError(f"Worker {worker_id} not found")

    async def update_status(self, worker_id: str, status: str) -> None:
        """KeyError when unknown. A lost worker stays lost."""
        changed = await asyncio.to_thread(self._registration.update_status, worker_id, WorkerStatus(status))
        if not changed and await self.get(worker_id) is None:
            raise KeyError(f"Worker {worker_id} not found")

    async def get(self, worker_id: str) -> Any:
        found = await asyncio.to_thread(self._registration.get, worker_id)
        return _record(found) if found else None

    async def list(self, filter: Any = None) -> Any:
        ours = filter and WorkerFilter(
            status=_statuses(filter.status),
            capability=filter.capability,
            stale_threshold_seconds=filter.stale_threshold_seconds,
        )
        found = await asyncio.to_thread(self._registration.list, ours)
        return [_record(worker) for worker in found]


def _statuses(given: Any) -> frozenset[WorkerStatus] | None:
    if not given:
        return None
    return frozenset(WorkerStatus(status) for status in ([given] if isinstance(given, str) else given))


def _record(worker: WorkerRecord) -> Any:
    return fm.WorkerRecord(
        worker_id=worker.worker_id,
        status=worker.status.value,
        last_heartbeat=_iso(worker.last_heartbeat),
        host=worker.host,
        pid=worker.pid,
        capabilities=[*worker.capabilities],
        started_at=_iso(worker.started_at),
        current_task_id=worker.current_task_id,
        metadata=dict(worker.metadata) or None,
    )


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()
