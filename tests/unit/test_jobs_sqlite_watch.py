"""An idle worker on SQLite hears of a push by the kernel, and looks seldom by itself."""

import threading
import time

from muster.jobs import connect, sqlite_watch
from muster.jobs.sqlite_watch import LogWatch


def _looks(pool):
    seen = []
    pool._file.connection.set_trace_callback(lambda sql: seen.append(sql) if "data_version" in sql else None)
    return seen


def test_a_push_wakes_who_waits_without_being_looked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_watch, "_SAFETY_S", 20.0)
    jobs = connect(f"sqlite:///{tmp_path}/jobs.db")
    pool = jobs.work.pool("p")
    pool.wait(1.0)  # the first look counts as news
    pusher = threading.Timer(0.3, lambda: jobs.work.pool("p").push(1))
    begun = time.monotonic()
    pusher.start()
    pool.wait(20.0)
    assert time.monotonic() - begun < 10.0
    assert pool.claim("w").data == 1
    pusher.join()


def test_who_waits_looks_seldom_while_nothing_happens(tmp_path):
    pool = connect(f"sqlite:///{tmp_path}/jobs.db").work.pool("p")
    pool.wait(1.0)
    looks = _looks(pool)
    pool.wait(0.5)
    assert 2 <= len(looks) <= 40


def test_many_writes_of_other_pools_wake_no_more_often_than_every_poll(tmp_path):
    jobs = connect(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    pool, stop = jobs.work.pool("p"), threading.Event()

    def busy():
        while not stop.is_set():
            jobs.work.pool("other").push(1)

    writer = threading.Thread(target=busy)
    writer.start()
    begun, woken = time.monotonic(), 0
    while time.monotonic() - begun < 0.5:
        pool.wait(0.1)
        woken += 1
    stop.set()
    writer.join()
    assert 1 < woken <= 0.6 / sqlite_watch.POLL_S


def test_without_a_place_for_a_watch_it_polls(tmp_path):
    begun = time.monotonic()
    LogWatch(tmp_path / "no such log").pause(5.0)
    assert time.monotonic() - begun < 1.0
