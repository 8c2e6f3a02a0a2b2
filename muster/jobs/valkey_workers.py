"""The worker registry in Valkey: five hashes in one slot, one Lua file per step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from muster.clock import Clock
from muster.jobs.model import (
    LIVE,
    Ids,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
    Workers,
    WorkerStatus,
)
from muster.store import Step, Store, command, fields, tagged

_LUA = Path(__file__).parent / "lua"
_INFO, _STATUS, _BEAT, _META, _POOL = (
    f"jobs:{{workers}}:{part}" for part in ("info", "status", "beat", "meta", "pool")
)


class ValkeyRegistration:
    """Workers of every pool of one server."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def register(self, worker: WorkerRegistration) -> WorkerRecord:
        self._register(WorkerStatus.ACTIVE, worker.pool or "", -1, [worker])
        now = self._clock.now()
        return _record(
            worker.worker_id, self._info(worker, now), WorkerStatus.ACTIVE, repr(now), "{}", worker.pool
        )

    def join(self, worker: WorkerRegistration, total: int) -> bool:
        return bool(self._register(WorkerStatus.ACTIVE, worker.pool or "", max(total, 0), [worker]))

    def reserve(self, pool: str, total: int, workers: Sequence[WorkerRegistration]) -> Ids:
        return self._register(WorkerStatus.STARTING, pool, max(total, 0), workers)

    def heartbeat(self, worker_id: str, metadata: dict[str, Any] | None = None) -> WorkerStatus:
        args = (worker_id, repr(self._clock.now()), json.dumps(metadata) if metadata else "")
        return WorkerStatus(
            self._store.one(Step(_LUA / "beat.lua", (_STATUS, _BEAT, _META), args, tagged))[0]
        )

    def update_status(self, worker_id: str, status: WorkerStatus) -> bool:
        return self._set(worker_id, status, "")

    def lose(self, worker_id: str, last_heartbeat: float) -> bool:
        return self._set(worker_id, WorkerStatus.LOST, repr(last_heartbeat))

    def get(self, worker_id: str) -> WorkerRecord | None:
        info, status, beat, meta, pool = self._store.run(
            *(command("HGET", key, worker_id, parse=_maybe) for key in (_INFO, _STATUS, _BEAT, _META, _POOL))
        )
        return _record(worker_id, info, status, beat, meta or "{}", pool) if info else None

    def list(self, filter: WorkerFilter | None = None) -> Workers:
        now = self._clock.now()
        info, status, beat, meta, pool = self._store.run(
            *(command("HGETALL", key, parse=fields) for key in (_INFO, _STATUS, _BEAT, _META, _POOL))
        )
        # The five reads are one round trip but not one step: a worker known to all of them is complete.
        known = [w for w in info if w in status and w in beat]
        records = [_record(w, info[w], status[w], beat[w], meta.get(w, "{}"), pool.get(w)) for w in known]
        chosen = [w for w in records if filter is None or filter.admits(w, now)]
        return sorted(chosen, key=lambda w: (w.started_at, w.worker_id))

    def forget(self, older_than: float) -> int:
        cutoff = self._clock.now() - older_than
        gone = [w.worker_id for w in self.list() if w.status not in LIVE and w.last_heartbeat < cutoff]
        if gone:
            self._store.run(
                *(command("HDEL", key, *gone, parse=int) for key in (_INFO, _STATUS, _BEAT, _META, _POOL))
            )
        return len(gone)

    def _register(
        self, status: WorkerStatus, pool: str, total: int, workers: Sequence[WorkerRegistration]
    ) -> Ids:
        now = self._clock.now()
        args: tuple[Any, ...] = (status.value, repr(now), pool, total)
        for worker in workers:
            args += (worker.worker_id, self._info(worker, now))
        step = Step(_LUA / "register.lua", (_INFO, _STATUS, _BEAT, _META, _POOL), args, tagged)
        taken = self._store.one(step)
        return [*taken]

    def _set(self, worker_id: str, status: WorkerStatus, beat: str) -> bool:
        args = (worker_id, status.value, beat)
        return self._store.one(Step(_LUA / "status.lua", (_STATUS, _BEAT), args, tagged))[0] == "set"

    @staticmethod
    def _info(worker: WorkerRegistration, now: float) -> str:
        started = now if worker.started_at is None else worker.started_at
        return json.dumps([worker.host, worker.pid, list(worker.capabilities), started])


def _record(worker_id: str, info: str, status: str, beat: str, meta: str, pool: str | None) -> WorkerRecord:
    host, pid, capabilities, started = json.loads(info)
    return WorkerRecord(
        worker_id=worker_id,
        status=WorkerStatus(status),
        last_heartbeat=float(beat),
        started_at=started,
        host=host,
        pid=pid,
        capabilities=tuple(capabilities),
        pool=pool or None,
        metadata=json.loads(meta),
    )


def _maybe(reply: Any) -> str | None:
    return None if reply is None else tagged([reply])[0]
