"""The database of one key: `.data/<key>.db`, SQLite in WAL mode, one writer per process.

Any table with a column `at` (Unix seconds) is pruned of rows older than 90 days when the worker
starts; strategies that name their time column so get it for nothing.
"""

from __future__ import annotations

import json
import sqlite3
from datetime import timedelta
from pathlib import Path
from typing import Any

_SCHEMA = """
CREATE TABLE IF NOT EXISTS cycles (
  at REAL NOT NULL,        -- when the cycle started
  seconds REAL NOT NULL,   -- how long it took
  error TEXT,              -- null when it went well
  result TEXT              -- JSON of what the strategy returned
);
CREATE TABLE IF NOT EXISTS ownership (
  at REAL NOT NULL,        -- when this process took the key's lock
  holder TEXT NOT NULL,    -- the value of the lock
  held_until REAL NOT NULL,-- the last moment it is known to have held it
  ended TEXT               -- released, or lost; null for a process that was killed
);
"""


def open_database(path: Path) -> sqlite3.Connection:
    """Open or create the database. The connection may be used from any one thread at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=10, check_same_thread=False, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=NORMAL")
    db.executescript(_SCHEMA)
    return db


def prune(db: sqlite3.Connection, now: float, keep: timedelta) -> int:
    """Delete rows older than `keep` from every table with a column `at`; how many went."""
    before = now - keep.total_seconds()
    removed = 0
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        quoted = '"' + table.replace('"', '""') + '"'
        columns = {row[1] for row in db.execute(f"PRAGMA table_info({quoted})")}
        if "at" in columns:
            removed += db.execute(f"DELETE FROM {quoted} WHERE at < ?", (before,)).rowcount  # noqa: S608 - quoted
    return removed


def record_cycle(
    db: sqlite3.Connection, at: float, seconds: float, error: str | None, result: dict[str, Any] | None
) -> None:
    """One row per cycle, whether it went well or not."""
    db.execute(
        "INSERT INTO cycles VALUES (?, ?, ?, ?)",
        (at, seconds, error, None if result is None else json.dumps(result)),
    )


class Journal:
    """Who held the key's lock, and when: one row per holder, written by the holder itself."""

    def __init__(self, path: Path, holder: str, now: float) -> None:
        self._db = open_database(path)
        self._row = self._db.execute(
            "INSERT INTO ownership VALUES (?, ?, ?, NULL)", (now, holder, now)
        ).lastrowid

    def held(self, now: float) -> None:
        self._db.execute("UPDATE ownership SET held_until = ? WHERE rowid = ?", (now, self._row))

    def end(self, now: float, how: str) -> None:
        """Write BEFORE the lock is released: afterwards the key may belong to somebody else."""
        self._db.execute(
            "UPDATE ownership SET held_until = ?, ended = ? WHERE rowid = ?", (now, how, self._row)
        )
        self._db.close()
