"""Jobs in one SQLite file. The token check of each update is what makes a claim exclusive."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from muster.clock import Clock
from muster.jobs.model import (
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
    WorkItem,
    retry_delay,
    settle,
)
from muster.jobs.ports import _VISIBILITY, WorkPool
from muster.jobs.sqlite_file import SQLiteFile
from muster.jobs.sqlite_watch import POLL_S, LogWatch
from muster.jobs.text import decode, encode

_COLUMNS = (
    "id, kind, data, status, attempts, max_retries, token, trim(claimed_by), claimed_at, rank, run_at,"
    " created_at, finished_at, cancel_requested, dedup, time_limit, parent, result, error, progress,"
    " checkpoint"
)
_OPEN = "FROM work_pool WHERE pool_name = ?1 AND finished_at IS NULL AND status ="
_READY = f"{_OPEN} 'pending' AND run_at IS NULL"
_DELAYED = f"{_OPEN} 'pending' AND run_at IS NOT NULL"
_HELD = f"{_OPEN} 'claimed'"
_PROMOTE = f"UPDATE work_pool SET run_at = NULL WHERE id IN (SELECT id {_DELAYED} AND run_at <= ?2)"  # noqa: S608
_CLAIM_SET = """UPDATE work_pool SET status = 'claimed', claimed_by = ?2, claimed_at = ?3, visible_until = ?4,
    attempts = attempts + 1, token = token + 1 WHERE id"""
_NEXT = f"(SELECT id {_READY} ORDER BY rank, id LIMIT"  # one job needs no temporary table, hence two forms
_CLAIMED = (
    "id, kind, data, attempts, max_retries, token, rank, created_at, dedup, time_limit, parent, checkpoint"
)
_CLAIM_ONE = f"{_CLAIM_SET} = {_NEXT} 1) RETURNING {_CLAIMED}"
_CLAIM = f"{_CLAIM_SET} IN {_NEXT} ?5) RETURNING {_CLAIMED}"
_COMPLETE = """UPDATE work_pool SET status = 'done', result = ?, finished_at = ?
    WHERE id = ? AND pool_name = ? AND status = 'claimed' AND token = ?"""
#: A pending job is nobody's, but holds the room that a claim and a result need: a row that outgrew its page
#: would split it, and a turn would write four pages for one.
_ROOM = " " * 48
_PROMOTE_EVERY_S = 0.02  # how late a delayed job may be while others keep the pool busy
_ID_DIGITS = 18  # more do not fit the column, so no job has them
#: Also over a trim of the newest job: an id used twice would let a dead claim's token match again.
_LAST_ID = """SELECT max(coalesce((SELECT max(id) FROM work_pool), 0),
    coalesce((SELECT newest_id FROM last_trim), 0))"""

Rows = list[tuple[Any, ...]]


class SQLitePool(WorkPool):
    """One pool: the rows of `work_pool` with its name."""

    def __init__(self, name: str, file: SQLiteFile, clock: Clock) -> None:
        self.name = name
        self._file = file
        self._clock = clock
        self._seen = -1
        self._woke = 0.0
        self._watch: LogWatch | None = None
        self._promoted = 0.0  # when delayed jobs were last looked for

    def push_many(self, jobs: Sequence[NewJob]) -> Ids:
        now = self._clock.now()
        with self._file.write() as db:
            last = db.execute(_LAST_ID).fetchone()[0]
            ids, rows = [], []
            fresh: dict[str, int] = {}
            for new in jobs:
                if new.dedup is not None:
                    known = db.execute(
                        "SELECT id FROM work_pool WHERE pool_name = ? AND dedup = ? AND finished_at IS NULL",
                        (self.name, new.dedup),
                    ).fetchone()
                    twin = known[0] if known else fresh.get(new.dedup)
                    if twin is not None:
                        ids.append(str(twin))
                        continue
                last = max(last + 1, int(now * 1e6))
                if new.dedup is not None:
                    fresh[new.dedup] = last
                ids.append(str(last))
                run_at = now + new.delay if new.delay > 0 else None
                row = (last, self.name, new.kind, encode(new.data), -new.priority, run_at, _ROOM)
                rows.append((*row, new.max_retries, new.dedup, new.time_limit, new.parent, now))
            db.executemany(
                "INSERT INTO work_pool (id, pool_name, kind, data, rank, run_at, claimed_by, max_retries,"
                " dedup, time_limit, parent, created_at) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
                rows,
            )
        return ids

    def turn(
        self,
        worker_id: str,
        finished: Sequence[Finished] = (),
        claim: int = 1,
        visibility: float = _VISIBILITY,
    ) -> Turn:
        if not finished and not self._due():
            return Turn([], [])  # an idle worker must not take the write lock just to find nothing
        now = self._clock.now()
        accepted, rows = [], []
        with self._file.write() as db:
            for done in finished:
                changed = db.execute(
                    _COMPLETE, (_text(done.result), now, int(done.id), self.name, done.token)
                ).rowcount
                accepted.append(changed == 1)
            if False in accepted:
                self._late(db, accepted.count(False))
            if claim:
                rows = self._claim(db, (self.name, worker_id, now, now + visibility), claim)
        if len(rows) > 1:
            rows.sort(key=lambda row: (row[6], row[0]))
        return Turn(accepted, [self._claimed(row, worker_id, now) for row in rows])

    def settle(
        self, claims: Sequence[tuple[str, int]], verdict: Verdict, error: str | None = None
    ) -> Outcomes:
        with self._file.write() as db:
            return [self._settle(db, int(job_id), token, verdict, error) for job_id, token in claims]

    def release_by_worker(self, worker_id: str) -> int:
        return self._release("claimed_by = ?2", worker_id, f"worker {worker_id} was lost")

    def release_expired(self) -> int:
        return self._release("visible_until <= ?2", self._clock.now(), "the claim was not extended in time")

    def extend(self, worker_id: str, visibility: float = _VISIBILITY) -> Claims:
        rows = self._file.connection.execute(
            f"UPDATE work_pool SET visible_until = ?3 WHERE id IN (SELECT id {_HELD} AND claimed_by = ?2)"  # noqa: S608
            " RETURNING id, token, cancel_requested",
            (self.name, worker_id, self._clock.now() + visibility),
        ).fetchall()
        return [Held(str(job_id), token, bool(cancel)) for job_id, token, cancel in sorted(rows)]

    def report(
        self, item_id: str, token: int, progress: dict[str, Any] | None = None, checkpoint: Any = None
    ) -> bool:
        changed = self._file.connection.execute(
            "UPDATE work_pool SET progress = coalesce(?, progress), checkpoint = coalesce(?, checkpoint)"
            " WHERE id = ? AND pool_name = ? AND status = 'claimed' AND token = ?",
            (_text(progress), _text(checkpoint), int(item_id), self.name, token),
        ).rowcount
        return changed == 1

    def cancel(self, item_id: str) -> JobStatus | None:
        with self._file.write() as db:
            where = (int(item_id), self.name)
            db.execute(
                "UPDATE work_pool SET status = 'cancelled', finished_at = ?, run_at = NULL"
                " WHERE id = ? AND pool_name = ? AND status = 'pending'",
                (self._clock.now(), *where),
            )
            db.execute(
                "UPDATE work_pool SET cancel_requested = 1"
                " WHERE id = ? AND pool_name = ? AND status = 'claimed'",
                where,
            )
            row = db.execute("SELECT status FROM work_pool WHERE id = ? AND pool_name = ?", where).fetchone()
        return JobStatus(row[0]) if row else None

    def requeue(self, item_id: str) -> bool:
        changed = self._file.connection.execute(
            "UPDATE work_pool SET status = 'pending', run_at = NULL, attempts = 0, cancel_requested = 0,"
            " dedup = NULL, finished_at = NULL, error = NULL, claimed_by = NULL, claimed_at = NULL"
            " WHERE id = ? AND pool_name = ? AND status IN ('poisoned', 'cancelled')",
            (int(item_id), self.name),
        ).rowcount
        return changed == 1

    def get(self, item_id: str) -> WorkItem | None:
        if not item_id.isdigit() or len(item_id) > _ID_DIGITS:
            return None
        row = self._file.connection.execute(
            f"SELECT {_COLUMNS} FROM work_pool WHERE id = ? AND pool_name = ?",  # noqa: S608
            (int(item_id), self.name),
        ).fetchone()
        return self._item(row) if row else None

    def list(self, status: JobStatus | None = None, *, limit: int = 50, before: str | None = None) -> Items:
        rows = self._file.connection.execute(
            f"SELECT {_COLUMNS} FROM work_pool WHERE pool_name = ?1 AND (?2 IS NULL OR status = ?2)"  # noqa: S608
            " AND (?3 IS NULL OR id < ?3) ORDER BY id DESC LIMIT ?4",
            (self.name, status, None if before is None else int(before), limit),
        )
        return [self._item(row) for row in rows]

    def size(self) -> int:
        row = self._file.connection.execute(
            f"SELECT (SELECT count(*) {_READY}) + (SELECT count(*) {_DELAYED})",
            (self.name,),
        ).fetchone()
        return int(row[0])

    def running(self) -> int:
        row = self._file.connection.execute(f"SELECT count(*) {_HELD}", (self.name,)).fetchone()
        return int(row[0])

    def counts(self) -> Counts:
        db = self._file.connection
        rows = db.execute(
            "SELECT status, count(*) FROM work_pool WHERE pool_name = ? GROUP BY 1", (self.name,)
        )
        late = db.execute("SELECT late FROM pool_settings WHERE pool_name = ?", (self.name,)).fetchone()
        total = dict(rows.fetchall())
        oldest = db.execute(f"SELECT min(created_at) {_OPEN} 'pending'", (self.name,)).fetchone()[0]
        age = 0.0 if oldest is None else max(self._clock.now() - oldest, 0.0)
        return Counts(**total, late=late[0] if late else 0, oldest_pending_s=age)

    def wait(self, timeout: float) -> None:
        db = self._file.connection
        self._watch = self._watch or LogWatch(self._file.log)
        deadline = time.monotonic() + timeout
        # In a file that is written all the time, mostly for other pools: not more often than this.
        time.sleep(min(max(self._woke + POLL_S - time.monotonic(), 0.0), timeout))
        while (left := deadline - time.monotonic()) > 0:
            version = db.execute("PRAGMA data_version").fetchone()[0]  # one page is read, no lock is taken
            if version != self._seen:
                self._seen = version
                self._woke = time.monotonic()
                return
            self._watch.pause(left)

    def trim(self, retention: float, poison_retention: float, keep: int) -> int:
        now = self._clock.now()
        oldest_kept = int((now - min(retention, poison_retention)) * 1e6)
        with self._file.write() as db:
            db.execute(f"INSERT OR REPLACE INTO last_trim VALUES (1, ({_LAST_ID}))")  # noqa: S608
            old = db.execute(
                "DELETE FROM work_pool WHERE id < ? AND pool_name = ?"
                " AND ((status IN ('done', 'cancelled') AND finished_at < ?)"
                "   OR (status = 'poisoned' AND finished_at < ?))",
                (oldest_kept, self.name, now - retention, now - poison_retention),
            ).rowcount
            surplus = db.execute(
                "DELETE FROM work_pool WHERE id IN (SELECT id FROM work_pool WHERE pool_name = ?"
                " AND finished_at IS NOT NULL ORDER BY id DESC LIMIT -1 OFFSET ?)",
                (self.name, keep),
            ).rowcount
        return old + surplus

    def settings(self) -> PoolSettings:
        row = self._file.connection.execute(
            "SELECT settings FROM pool_settings WHERE pool_name = ?", (self.name,)
        ).fetchone()
        return PoolSettings(**decode(row[0])) if row else PoolSettings()

    def configure(self, settings: PoolSettings) -> None:
        self._file.connection.execute(
            "INSERT INTO pool_settings (pool_name, settings) VALUES (?, ?)"
            " ON CONFLICT(pool_name) DO UPDATE SET settings = excluded.settings",
            (self.name, encode({"max_workers": settings.max_workers, "pin": settings.pin})),
        )

    def _claim(self, db: sqlite3.Connection, claim: tuple[Any, ...], count: int) -> Rows:
        """Delayed jobs are looked for now and then, and whenever nothing else is left."""
        now = claim[2]
        if abs(now - self._promoted) < _PROMOTE_EVERY_S and (rows := self._take(db, claim, count)):
            return rows
        self._promoted = now
        db.execute(_PROMOTE, (self.name, now))
        return self._take(db, claim, count)

    def _take(self, db: sqlite3.Connection, claim: tuple[Any, ...], count: int) -> Rows:
        if count == 1:
            return db.execute(_CLAIM_ONE, claim).fetchall()
        return db.execute(_CLAIM, (*claim, count)).fetchall()

    def _due(self) -> bool:
        row = self._file.connection.execute(
            f"SELECT EXISTS (SELECT 1 {_READY}) OR EXISTS (SELECT 1 {_DELAYED} AND run_at <= ?2)",
            (self.name, self._clock.now()),
        ).fetchone()
        return bool(row[0])

    def _release(self, condition: str, value: str | float, error: str) -> int:
        query = f"SELECT id, token {_HELD} AND {condition}"
        if not self._file.connection.execute(query, (self.name, value)).fetchone():
            return 0
        with self._file.write() as db:
            rows = db.execute(query, (self.name, value)).fetchall()
            for job_id, token in rows:
                self._settle(db, job_id, token, Verdict.RELEASE, error)
        return len(rows)

    def _settle(
        self, db: sqlite3.Connection, job_id: int, token: int, verdict: Verdict, error: str | None
    ) -> JobStatus | None:
        row = db.execute(
            "SELECT attempts, max_retries, cancel_requested FROM work_pool"
            " WHERE id = ? AND pool_name = ? AND status = 'claimed' AND token = ?",
            (job_id, self.name, token),
        ).fetchone()
        if row is None:
            return None
        now = self._clock.now()
        attempts, max_retries, cancel = row
        status = settle(verdict, attempts, max_retries, bool(cancel))
        if status is JobStatus.PENDING:
            run_at = now + retry_delay(attempts) if verdict is Verdict.FAIL else None
            attempts -= verdict is Verdict.RETURN
            db.execute(
                "UPDATE work_pool SET status = 'pending', run_at = ?, attempts = ?,"
                " error = coalesce(?, error), claimed_by = NULL, claimed_at = NULL WHERE id = ?",
                (run_at, attempts, error, job_id),
            )
        else:
            db.execute(
                "UPDATE work_pool SET status = ?, finished_at = ?, error = coalesce(?, error) WHERE id = ?",
                (status, now, error, job_id),
            )
        return status

    def _late(self, db: sqlite3.Connection, count: int) -> None:
        db.execute(
            "INSERT INTO pool_settings (pool_name, late) VALUES (?, ?)"
            " ON CONFLICT(pool_name) DO UPDATE SET late = late + excluded.late",
            (self.name, count),
        )

    def _claimed(self, row: tuple[Any, ...], worker_id: str, now: float) -> WorkItem:
        job_id, kind, data, attempts, retries, token, rank, created, dedup, limit, parent, checkpoint = row
        return WorkItem(
            str(job_id), self.name, decode(data), kind, JobStatus.CLAIMED, attempts, retries, token,
            worker_id, now, -rank, None, created, None, False, dedup, limit, parent,
            checkpoint=_value(checkpoint),
        )  # fmt: skip

    def _item(self, row: tuple[Any, ...]) -> WorkItem:
        return WorkItem(
            str(row[0]), self.name, decode(row[2]), row[1], _STATUS[row[3]], row[4], row[5], row[6],
            row[7] or None, row[8], -row[9], row[10], row[11], row[12], bool(row[13]), row[14], row[15],
            row[16], _value(row[17]), row[18], _value(row[19]), _value(row[20]),
        )  # fmt: skip


_STATUS = {status.value: status for status in JobStatus}


class SQLiteWork:
    """Every pool of one file."""

    def __init__(self, file: SQLiteFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock

    def pool(self, name: str) -> SQLitePool:
        return SQLitePool(name, self._file, self._clock)

    def pools(self) -> list[str]:
        rows = self._file.connection.execute(
            "SELECT pool_name FROM work_pool UNION SELECT pool_name FROM pool_settings ORDER BY 1"
        )
        return [name for (name,) in rows]


def _text(value: Any) -> str | None:
    return None if value is None else encode(value)


def _value(text: str | None) -> Any:
    return None if text is None else decode(text)
