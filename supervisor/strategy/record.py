"""Step 6: store what was decided, and find it again after a restart."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping

from supervisor.strategy.model import Analysis, Change

_SCHEMA = """
CREATE TABLE IF NOT EXISTS decisions (
  at REAL NOT NULL, price REAL NOT NULL, regime TEXT NOT NULL, weights TEXT NOT NULL, changes INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS changes (
  at REAL NOT NULL, kind TEXT NOT NULL, pool TEXT NOT NULL, before REAL NOT NULL, after REAL NOT NULL
);
"""


def record(
    db: sqlite3.Connection, at: float, analysis: Analysis, weights: Mapping[str, float], changes: list[Change]
) -> None:
    """One decision with its changes, whole or not at all."""
    db.executescript(_SCHEMA)
    with db:
        db.execute("BEGIN")
        db.execute(
            "INSERT INTO decisions VALUES (?, ?, ?, ?, ?)",
            (at, analysis.price, analysis.regime, json.dumps(weights), len(changes)),
        )
        db.executemany(
            "INSERT INTO changes VALUES (?, ?, ?, ?, ?)",
            [(at, c.kind, c.pool, c.before, c.after) for c in changes],
        )


def last_positions(db: sqlite3.Connection) -> dict[str, float]:
    """The weights of the last decision; none before the first."""
    db.executescript(_SCHEMA)
    row = db.execute("SELECT weights FROM decisions ORDER BY at DESC LIMIT 1").fetchone()
    return json.loads(row[0]) if row else {}
