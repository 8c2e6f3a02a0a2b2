"""Jobs in this process's memory: for tests, for the simulator, and for a single process."""

from __future__ import annotations

import json
import threading
from bisect import insort
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from muster.clock import Clock
from muster.jobs.model import (
    FINISHED,
    LIVE,
    Claims,
    Counts,
    Finished,
    Held,
    Ids,
    Items,
    JobStatus,
    NewJob,
    Outcomes,
    PoolSettings,
    Turn,
    Verdict,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
    Workers,
    WorkerStatus,
    WorkItem,
    retry_delay,
    settle,
)
from muster.jobs.ports import _VISIBILITY, WorkPool


class MemoryPool(WorkPool):
    """One lock around plain dicts. Data goes through JSON, as it does in the real backends."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._jobs: dict[str, WorkItem] = {}
        self._visible: dict[str, float] = {}  # claimed job -> when its claim ends
        self._ready: list[tuple[int, str]] = []  # (-priority, id) of pending jobs that are due
        self._late = 0
        self._last_id = 0
        self._settings = PoolSettings()

    def push_many(self, jobs: Sequence[NewJob]) -> Ids:
        with self._changed:
            now = self._clock.now()
            ids = []
            open_keys = {
                j.dedup: j.id for j in self._jobs.values() if j.dedup is not None and j.status not in FINISHED
            }
            for new in jobs:
                if new.dedup is not None and new.dedup in open_keys:
                    ids.append(open_keys[new.dedup])
                    continue
                self._last_id = max(self._last_id + 1, int(now * 1e6))
                item = WorkItem(
                    id=str(self._last_id),
                    pool=self.name,
                    data=_json(new.data),
                    kind=new.kind,
                    max_retries=new.max_retries,
                    priority=new.priority,
                    created_at=now,
                    dedup=new.dedup,
                    time_limit=new.time_limit,
                    parent=new.parent,
                )
                self._jobs[item.id] = item
                self._enqueue(item, new.delay, now)
                if new.dedup is not None:
                    open_keys[new.dedup] = item.id
                ids.append(item.id)
            return ids

    def turn(
        self,
        worker_id: str,
        finished: Sequence[Finished] = (),
        claim: int = 1,
        visibility: float = _VISIBILITY,
    ) -> Turn:
        with self._changed:
            now = self._clock.now()
            accepted = []
            for done in finished:
                item = self._held(done.id, done.token)
                accepted.append(item is not None)
                if item is None:
                    self._late += 1
                else:
                    item.result = _json(done.result)
                    self._end(item, JobStatus.DONE, now)
            for item in self._jobs.values() if claim else ():
                if item.status is JobStatus.PENDING and item.run_at is not None and item.run_at <= now:
                    self._enqueue(item, 0.0, now)
            claimed: Items = []
            while self._ready and len(claimed) < claim:
                item = self._jobs[self._ready.pop(0)[1]]
                item.status = JobStatus.CLAIMED
                item.claimed_by, item.claimed_at = worker_id, now
                item.attempts += 1
                item.token += 1
                self._visible[item.id] = now + visibility
                claimed.append(deepcopy(item))
            return Turn(accepted, claimed)

    def settle(
        self, claims: Sequence[tuple[str, int]], verdict: Verdict, error: str | None = None
    ) -> Outcomes:
        with self._changed:
            return [
                self._settle(item, verdict, error) if (item := self._held(job_id, token)) else None
                for job_id, token in claims
            ]

    def release_by_worker(self, worker_id: str) -> int:
        with self._changed:
            held = [self._jobs[i] for i in self._visible if self._jobs[i].claimed_by == worker_id]
            for item in held:
                self._settle(item, Verdict.RELEASE, f"worker {worker_id} was lost")
            return len(held)

    def release_expired(self) -> int:
        with self._changed:
            now = self._clock.now()
            over = [self._jobs[i] for i, until in self._visible.items() if until <= now]
            for item in over:
                self._settle(item, Verdict.RELEASE, "the claim was not extended in time")
            return len(over)

    def extend(self, worker_id: str, visibility: float = _VISIBILITY) -> Claims:
        with self._changed:
            held = [self._jobs[i] for i in self._visible if self._jobs[i].claimed_by == worker_id]
            for item in held:
                self._visible[item.id] = self._clock.now() + visibility
            return [Held(item.id, item.token, item.cancel_requested) for item in held]

    def report(
        self, item_id: str, token: int, progress: dict[str, Any] | None = None, checkpoint: Any = None
    ) -> bool:
        with self._changed:
            item = self._held(item_id, token)
            if item is None:
                return False
            item.progress = _json(progress) if progress is not None else item.progress
            item.checkpoint = _json(checkpoint) if checkpoint is not None else item.checkpoint
            return True

    def cancel(self, item_id: str) -> JobStatus | None:
        with self._changed:
            item = self._jobs.get(item_id)
            if item is None:
                return None
            if item.status is JobStatus.PENDING:
                self._end(item, JobStatus.CANCELLED, self._clock.now())
            elif item.status is JobStatus.CLAIMED:
                item.cancel_requested = True
            return item.status

    def requeue(self, item_id: str) -> bool:
        with self._changed:
            item = self._jobs.get(item_id)
            if item is None or item.status not in (JobStatus.POISONED, JobStatus.CANCELLED):
                return False
            item.attempts, item.cancel_requested, item.dedup, item.finished_at = 0, False, None, None
            item.error = None
            item.claimed_by = item.claimed_at = None
            self._enqueue(item, 0.0, self._clock.now())
            return True

    def get(self, item_id: str) -> WorkItem | None:
        with self._changed:
            return deepcopy(self._jobs.get(item_id))

    def list(self, status: JobStatus | None = None, *, limit: int = 50, before: str | None = None) -> Items:
        with self._changed:
            page = [
                item
                for item in sorted(self._jobs.values(), key=lambda item: item.id, reverse=True)
                if (status is None or item.status is status) and (before is None or item.id < before)
            ]
            return deepcopy(page[:limit])

    def size(self) -> int:
        return self.counts().pending

    def running(self) -> int:
        return len(self._visible)

    def counts(self) -> Counts:
        with self._changed:
            total = {status.value: 0 for status in JobStatus}
            for item in self._jobs.values():
                total[item.status.value] += 1
            waiting = [j.created_at for j in self._jobs.values() if j.status is JobStatus.PENDING]
            age = self._clock.now() - min(waiting) if waiting else 0.0
            return Counts(**total, late=self._late, oldest_pending_s=max(age, 0.0))

    def wait(self, timeout: float) -> None:
        with self._changed:
            if not self._ready:
                self._changed.wait(timeout)

    def trim(self, retention: float, poison_retention: float, keep: int) -> int:
        with self._changed:
            now = self._clock.now()
            ended = sorted((j for j in self._jobs.values() if j.status in FINISHED), key=lambda j: j.id)
            surplus = {j.id for j in ended[: max(0, len(ended) - keep)]}
            gone = [
                j.id
                for j in ended
                if j.id in surplus
                or now - (j.finished_at or 0.0)
                > (poison_retention if j.status is JobStatus.POISONED else retention)
            ]
            for job_id in gone:
                del self._jobs[job_id]
            return len(gone)

    def settings(self) -> PoolSettings:
        return self._settings

    def configure(self, settings: PoolSettings) -> None:
        self._settings = settings

    def used(self) -> bool:
        return bool(self._jobs) or self._settings != PoolSettings()

    def _held(self, job_id: str, token: int) -> WorkItem | None:
        item = self._jobs.get(job_id)
        alive = item is not None and item.status is JobStatus.CLAIMED and item.token == token
        return item if alive else None

    def _enqueue(self, item: WorkItem, delay: float, now: float) -> None:
        item.status = JobStatus.PENDING
        item.run_at = now + delay if delay > 0 else None
        if item.run_at is None:
            insort(self._ready, (-item.priority, item.id))
            self._changed.notify()

    def _end(self, item: WorkItem, status: JobStatus, now: float) -> None:
        if (-item.priority, item.id) in self._ready:
            self._ready.remove((-item.priority, item.id))
        self._visible.pop(item.id, None)
        item.status, item.finished_at, item.run_at = status, now, None

    def _settle(self, item: WorkItem, verdict: Verdict, error: str | None) -> JobStatus:
        now = self._clock.now()
        status = settle(verdict, item.attempts, item.max_retries, item.cancel_requested)
        item.error = error if error is not None else item.error
        if status is JobStatus.PENDING:
            self._visible.pop(item.id, None)
            item.claimed_by = item.claimed_at = None
            delay = retry_delay(item.attempts) if verdict is Verdict.FAIL else 0.0
            item.attempts -= verdict is Verdict.RETURN
            self._enqueue(item, delay, now)
        else:
            self._end(item, status, now)
        return status


class MemoryWork:
    """Pools by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pools: dict[str, MemoryPool] = {}

    def pool(self, name: str) -> MemoryPool:
        return self._pools.setdefault(name, MemoryPool(name, self._clock))

    def pools(self) -> Ids:
        return sorted(name for name, pool in self._pools.items() if pool.used())


class MemoryRegistration:
    """Workers in a dict, under one lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._workers: dict[str, WorkerRecord] = {}

    def register(self, worker: WorkerRegistration) -> WorkerRecord:
        return self._put(worker, WorkerStatus.ACTIVE)

    def join(self, worker: WorkerRegistration, total: int) -> bool:
        with self._lock:
            live = [w for w in self._workers.values() if w.status in LIVE and w.pool == worker.pool]
            was = self._workers.get(worker.worker_id)
            lost = was is not None and was.status is WorkerStatus.LOST
            if lost or sum(w.worker_id != worker.worker_id for w in live) >= total:
                return False
            self._put(worker, WorkerStatus.ACTIVE)
            return True

    def reserve(self, pool: str, total: int, workers: Sequence[WorkerRegistration]) -> Ids:
        with self._lock:
            live = len(self.list(WorkerFilter(status=LIVE, pool=pool)))
            chosen = workers[: max(0, total - live)]
            for worker in chosen:
                self._put(worker, WorkerStatus.STARTING)
            return [worker.worker_id for worker in chosen]

    def heartbeat(self, worker_id: str, metadata: dict[str, Any] | None = None) -> WorkerStatus:
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is None or worker.status is WorkerStatus.LOST:
                return WorkerStatus.LOST
            merged = {**worker.metadata, **_json(metadata or {})}
            self._workers[worker_id] = replace(worker, last_heartbeat=self._clock.now(), metadata=merged)
            return worker.status

    def update_status(self, worker_id: str, status: WorkerStatus) -> bool:
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is None or worker.status is WorkerStatus.LOST:
                return False
            if status is WorkerStatus.TERMINATING and worker.status is WorkerStatus.TERMINATED:
                return False
            self._workers[worker_id] = replace(worker, status=status)
            return True

    def lose(self, worker_id: str, last_heartbeat: float) -> bool:
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is None or worker.status not in LIVE or worker.last_heartbeat != last_heartbeat:
                return False
            return self.update_status(worker_id, WorkerStatus.LOST)

    def get(self, worker_id: str) -> WorkerRecord | None:
        return self._workers.get(worker_id)

    def list(self, filter: WorkerFilter | None = None) -> Workers:
        with self._lock:
            now = self._clock.now()
            chosen = [w for w in self._workers.values() if filter is None or filter.admits(w, now)]
            return sorted(chosen, key=lambda w: (w.started_at, w.worker_id))

    def forget(self, older_than: float) -> int:
        with self._lock:
            cutoff = self._clock.now() - older_than
            gone = [
                w.worker_id
                for w in self._workers.values()
                if w.status not in LIVE and w.last_heartbeat < cutoff
            ]
            for worker_id in gone:
                del self._workers[worker_id]
            return len(gone)

    def _put(self, worker: WorkerRegistration, status: WorkerStatus) -> WorkerRecord:
        now = self._clock.now()
        record = WorkerRecord(
            worker_id=worker.worker_id,
            status=status,
            last_heartbeat=now,
            started_at=worker.started_at if worker.started_at is not None else now,
            host=worker.host,
            pid=worker.pid,
            capabilities=tuple(worker.capabilities),
            pool=worker.pool,
        )
        with self._lock:
            self._workers[worker.worker_id] = record
        return record


def _json(value: Any) -> Any:
    return json.loads(json.dumps(value))
