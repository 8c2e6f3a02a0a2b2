"""The worker registry in SQLite: one table, one statement per step."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
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
from muster.jobs.sqlite_file import SQLiteFile

_COLUMNS = (
    "worker_id, status, last_heartbeat, started_at, host, pid, capabilities, pool_id, metadata"  # one order
)
_LIVE = ", ".join(f"'{status.value}'" for status in sorted(LIVE))
_ALIVE = f"status IN ({_LIVE})"


class SQLiteRegistration:
    """The rows of `worker_registry`."""

    def __init__(self, file: SQLiteFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock

    def register(self, worker: WorkerRegistration) -> WorkerRecord:
        self._file.lengthen_log()
        with self._file.write() as db:
            return self._put(db, worker, WorkerStatus.ACTIVE)

    def join(self, worker: WorkerRegistration, total: int) -> bool:
        self._file.lengthen_log()
        with self._file.write() as db:
            others, lost = db.execute(
                f"SELECT count(*) FILTER (WHERE pool_id IS ?1 AND {_ALIVE} AND worker_id != ?2),"  # noqa: S608
                " count(*) FILTER (WHERE worker_id = ?2 AND status = 'lost') FROM worker_registry",
                (worker.pool, worker.worker_id),
            ).fetchone()
            admitted = others < total and not lost
            if admitted:
                self._put(db, worker, WorkerStatus.ACTIVE)
        return admitted

    def reserve(self, pool: str, total: int, workers: Sequence[WorkerRegistration]) -> Ids:
        with self._file.write() as db:
            live = db.execute(
                f"SELECT count(*) FROM worker_registry WHERE pool_id = ? AND status IN ({_LIVE})",  # noqa: S608
                (pool,),
            ).fetchone()[0]
            chosen = workers[: max(0, total - live)]
            for worker in chosen:
                self._put(db, worker, WorkerStatus.STARTING)
        return [worker.worker_id for worker in chosen]

    def heartbeat(self, worker_id: str, metadata: dict[str, Any] | None = None) -> WorkerStatus:
        row = self._file.connection.execute(
            "UPDATE worker_registry SET last_heartbeat = ?, metadata = json_patch(metadata, ?)"
            " WHERE worker_id = ? AND status != 'lost' RETURNING status",
            (self._clock.now(), json.dumps(metadata or {}), worker_id),
        ).fetchone()
        return WorkerStatus(row[0]) if row else WorkerStatus.LOST

    def update_status(self, worker_id: str, status: WorkerStatus) -> bool:
        changed = self._file.connection.execute(
            "UPDATE worker_registry SET status = ?1 WHERE worker_id = ?2 AND status != 'lost'"
            " AND NOT (?1 = 'terminating' AND status = 'terminated')",
            (status, worker_id),
        ).rowcount
        return changed == 1

    def lose(self, worker_id: str, last_heartbeat: float) -> bool:
        changed = self._file.connection.execute(
            f"UPDATE worker_registry SET status = 'lost' WHERE {_ALIVE} AND worker_id = ?"  # noqa: S608
            " AND last_heartbeat = ?",
            (worker_id, last_heartbeat),
        ).rowcount
        return changed == 1

    def get(self, worker_id: str) -> WorkerRecord | None:
        row = self._file.connection.execute(
            f"SELECT {_COLUMNS} FROM worker_registry WHERE worker_id = ?",  # noqa: S608
            (worker_id,),
        ).fetchone()
        return _record(row) if row else None

    def list(self, filter: WorkerFilter | None = None) -> Workers:
        now = self._clock.now()
        rows = self._file.connection.execute(
            f"SELECT {_COLUMNS} FROM worker_registry ORDER BY started_at, worker_id"  # noqa: S608
        )
        return [w for w in map(_record, rows) if filter is None or filter.admits(w, now)]

    def forget(self, older_than: float) -> int:
        return self._file.connection.execute(
            f"DELETE FROM worker_registry WHERE status NOT IN ({_LIVE}) AND last_heartbeat < ?",  # noqa: S608
            (self._clock.now() - older_than,),
        ).rowcount

    def _put(self, db: sqlite3.Connection, worker: WorkerRegistration, status: WorkerStatus) -> WorkerRecord:
        now = self._clock.now()
        row: tuple[Any, ...] = (
            worker.worker_id,
            status.value,
            now,
            now if worker.started_at is None else worker.started_at,
        )
        row += (worker.host, worker.pid, json.dumps(list(worker.capabilities)), worker.pool, "{}")
        db.execute(
            f"INSERT OR REPLACE INTO worker_registry ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?)",  # noqa: S608
            row,
        )
        return _record(row)


def _record(row: tuple[Any, ...]) -> WorkerRecord:
    worker_id, status, beat, started, host, pid, capabilities, pool, metadata = row
    return WorkerRecord(
        worker_id=worker_id,
        status=WorkerStatus(status),
        last_heartbeat=beat,
        started_at=started,
        host=host,
        pid=pid,
        capabilities=tuple(json.loads(capabilities)),
        pool=pool,
        metadata=json.loads(metadata),
    )
