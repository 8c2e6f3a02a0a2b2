"""One SQLite file, safe over any number of processes on one machine.

WAL, so that readers never wait; every write is one short IMMEDIATE transaction, so that two
processes queue for the file instead of failing half way. `synchronous=FULL` by default: a job that was
accepted survives a power cut.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from pathlib import Path

from muster.errors import TryLater
from muster.jobs.sqlite_watch import POLL_S

_LOG_BYTES = 4_200_000  # 1,000 pages: so long the log gets before SQLite begins it anew

#: One index serves claims, delays and the reaper. `run_at` is NULL once a job is due, so what is due is one
#: stretch of it, right behind what is claimed: a turn changes one page of it and, mostly, one of the table.
#: Finished jobs are in no index: ids rise with time, so trimming walks the oldest end of the table.
SCHEMA = """
CREATE TABLE IF NOT EXISTS work_pool (
    id INTEGER PRIMARY KEY,
    pool_name TEXT NOT NULL,
    kind TEXT NOT NULL,
    data TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    rank INTEGER NOT NULL DEFAULT 0,
    run_at REAL,
    claimed_by TEXT,
    claimed_at REAL,
    visible_until REAL,
    token INTEGER NOT NULL DEFAULT 0,
    attempts INTEGER NOT NULL DEFAULT 0,
    max_retries INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    dedup TEXT,
    time_limit REAL,
    parent TEXT,
    progress TEXT,
    checkpoint TEXT,
    result TEXT,
    error TEXT,
    created_at REAL NOT NULL,
    finished_at REAL
);
CREATE INDEX IF NOT EXISTS work_pool_open ON work_pool(pool_name, status, run_at, rank, id)
    WHERE finished_at IS NULL;
CREATE UNIQUE INDEX IF NOT EXISTS work_pool_dedup ON work_pool(pool_name, dedup)
    WHERE dedup IS NOT NULL AND finished_at IS NULL;
CREATE TABLE IF NOT EXISTS pool_settings (
    pool_name TEXT PRIMARY KEY,
    settings TEXT NOT NULL DEFAULT '{}',
    late INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS last_trim (only_row INTEGER PRIMARY KEY CHECK (only_row = 1), newest_id INTEGER);
CREATE TABLE IF NOT EXISTS worker_registry (
    worker_id TEXT PRIMARY KEY,
    status TEXT NOT NULL DEFAULT 'active',
    host TEXT,
    pid INTEGER,
    capabilities TEXT NOT NULL,
    pool_id TEXT,
    started_at REAL NOT NULL,
    last_heartbeat REAL NOT NULL,
    metadata TEXT NOT NULL DEFAULT '{}'
);
CREATE INDEX IF NOT EXISTS worker_registry_status ON worker_registry(status);
"""


class SQLiteFile:
    """One connection per thread and process to one file: neither may be shared with SQLite."""

    def __init__(self, path: Path, synchronous: str = "FULL", busy: float = 60.0) -> None:
        self.path = path
        self.log = path.with_name(f"{path.name}-wal")
        self._synchronous = synchronous.upper()
        self._busy = busy
        self._local = threading.local()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.connection.executescript(SCHEMA)

    @property
    def connection(self) -> sqlite3.Connection:
        pid, connection = getattr(self._local, "of", (0, None))
        if connection is None or pid != os.getpid():
            connection = sqlite3.connect(self.path, timeout=self._busy, isolation_level=None)
            self._use_wal(connection)
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            self._local.of = (os.getpid(), connection)
        return connection

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        """The change to WAL does not wait for others who open the file at the same moment: try again."""
        deadline = time.monotonic() + self._busy
        while True:
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as busy:
                if time.monotonic() > deadline:
                    raise _locked(self.path, busy) from busy
                time.sleep(POLL_S)

    def lengthen_log(self) -> None:
        """Make the log as long as it gets, at once, so that commits only overwrite it. For a worker's start.

        A commit that makes the log longer waits for the file system's journal besides its own pages: half as
        long again. So a transaction too big for its cache goes through the log and is taken back; SQLite
        writes over what is left of it. Each commit still waits until the disk has it.
        """
        if self._synchronous != "FULL" or (self.log.exists() and self.log.stat().st_size > _LOG_BYTES // 2):
            return
        filler = "INSERT OR REPLACE INTO pool_settings VALUES ('', zeroblob(?), 0)"
        cache = self.connection.execute("PRAGMA cache_size").fetchone()[0]
        self.connection.execute("PRAGMA cache_size = 16")
        try:
            with self.write() as db:
                db.execute("SAVEPOINT empty")
                db.execute(filler, (_LOG_BYTES,))
                db.execute("ROLLBACK TO empty")
        finally:
            self.connection.execute(f"PRAGMA cache_size = {cache}")

    def write(self) -> _Transaction:
        """One transaction that has the write lock from its start, so it can never fail half way for it."""
        return _Transaction(self)


class _Transaction:
    def __init__(self, file: SQLiteFile) -> None:
        self._file = file
        self._connection = file.connection

    def __enter__(self) -> sqlite3.Connection:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as busy:
            raise _locked(self._file.path, busy) from busy
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._connection.execute("COMMIT" if kind is None else "ROLLBACK")


def _locked(path: Path, busy: Exception) -> TryLater:
    return TryLater(f"{path} stayed locked; it comes back by itself ({busy})")
