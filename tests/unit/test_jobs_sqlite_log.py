"""SQLite's log is as long as it gets before the first job, and that changes nothing else."""

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
