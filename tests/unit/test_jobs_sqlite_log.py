"""What a turn costs the disk: SQLite's log is long before the first job, and few pages go in."""

import os
import sqlite3

from muster.jobs import Finished, NewJob, WorkerRegistration, connect


def _log(tmp_path):
    return (tmp_path / "jobs.db-wal").stat()


def test_the_turns_of_a_worker_do_not_make_the_log_longer(tmp_path):
    jobs = connect(f"sqlite:///{tmp_path}/jobs.db")
    jobs.registration.register(WorkerRegistration("w"))
    pool = jobs.work.pool("p")
    pool.push_many([NewJob(n) for n in range(500)])
    before = _log(tmp_path).st_size
    done = []
    for _ in range(501):
        done = [Finished(job.id, job.token) for job in pool.turn("w", done).claimed]
    assert pool.counts().done == 500
    assert _log(tmp_path).st_size == before


def test_what_went_through_the_log_is_no_part_of_the_file(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    if (child := os.fork()) == 0:
        jobs = connect(url)
        jobs.registration.register(WorkerRegistration("w"))
        jobs.work.pool("p").push("kept")
        os._exit(0)  # as SIGKILL would: the log stays behind, and the next to open the file recovers it
    assert os.waitpid(child, 0)[1] == 0
    jobs = connect(url)
    assert jobs.work.pools() == ["p"]
    assert jobs.work.pool("p").claim("w").data == "kept"
    with sqlite3.connect(tmp_path / "jobs.db") as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA page_count").fetchone()[0] < 50


def test_the_log_is_lengthened_once_and_not_where_no_commit_waits_for_the_disk(tmp_path):
    jobs = connect(f"sqlite:///{tmp_path}/jobs.db")
    jobs.registration.register(WorkerRegistration("w"))
    before = _log(tmp_path).st_size
    assert jobs.registration.join(WorkerRegistration("v"), 2)
    assert _log(tmp_path).st_size == before
    (tmp_path / "normal").mkdir()
    fast = connect(f"sqlite:///{tmp_path}/normal/jobs.db?synchronous=normal")
    fast.registration.register(WorkerRegistration("w"))
    assert _log(tmp_path / "normal").st_size < 200_000


def test_every_commit_waits_for_the_disk_by_default(tmp_path):
    jobs = connect(f"sqlite:///{tmp_path}/jobs.db")
    jobs.registration.register(WorkerRegistration("w"))
    assert jobs.work._file.connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_turn_of_ten_writes_three_pages_and_a_bit(tmp_path):
    jobs = connect(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    pool = jobs.work.pool("p")
    for start in range(0, 1000, 10):
        pool.push_many([NewJob(n) for n in range(start, start + 10)])
    db = jobs.work._file.connection
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.execute("PRAGMA wal_autocheckpoint = 0")
    done = []
    for _ in range(101):
        claimed = pool.turn("p-0123456789ab", done, 10).claimed
        done = [Finished(job.id, job.token, "a result") for job in claimed]
    pages = _log(tmp_path).st_size / (4096 + 24)
    assert pages / 100 < 3.8  # rows that outgrow their pages make it five
