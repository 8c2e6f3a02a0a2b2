"""One contract over the three job backends, on a clock that moves only when told."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor

import pytest

from muster.clock import FakeClock
from muster.errors import Refused
from muster.jobs import (
    Finished,
    Jobs,
    JobStatus,
    NewJob,
    PoolSettings,
    Verdict,
    WorkerFilter,
    WorkerRegistration,
    WorkerStatus,
    connect,
)
from muster.jobs.model import STALE_AFTER
from muster.jobs.reaper import reap

HOUR = 3600.0


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["memory", "sqlite", "valkey"])
def jobs(request, clock, tmp_path) -> Jobs:
    if request.param == "valkey":
        client = request.getfixturevalue("valkey")
        port = client.connection_pool.connection_kwargs["port"]
        return connect(f"valkey://127.0.0.1:{port}/0", clock)
    return connect("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db", clock)


@pytest.fixture
def pool(jobs):
    return jobs.work.pool("papers")


def ids(items):
    return [item.id for item in items]


def test_a_pushed_job_is_claimed_once_with_its_data(pool):
    job_id = pool.push({"n": 1, "empty": [], "text": "ü"}, kind="echo", time_limit=5.0)
    job = pool.claim("w1")
    assert (job.id, job.data, job.kind, job.status) == (
        job_id,
        {"n": 1, "empty": [], "text": "ü"},
        "echo",
        JobStatus.CLAIMED,
    )
    assert (job.attempts, job.claimed_by, job.time_limit, job.max_retries) == (1, "w1", 5.0, 3)
    assert pool.claim("w2") is None
    assert pool.size() == 0


def test_an_empty_pool_gives_nothing(pool):
    assert pool.claim("w1") is None
    assert pool.size() == 0
    assert pool.get("1700000000000000") is None
    assert pool.get("no-such-id") is None
    assert pool.cancel("1700000000000000") is None


def test_jobs_come_in_the_order_of_their_push_whatever_the_clock_does(pool, clock):
    first = pool.push(1)
    clock.advance(-HOUR)
    second = pool.push(2)
    assert second > first
    assert [pool.claim("w").data, pool.claim("w").data] == [1, 2]


def test_higher_priority_goes_first_then_the_oldest(pool):
    pushed = pool.push_many([NewJob(n, priority=p) for n, p in enumerate([0, 5, -1, 5])])
    assert len(set(pushed)) == 4
    assert [job.data for job in pool.turn("w", claim=10).claimed] == [1, 3, 0, 2]


def test_a_delayed_job_waits_for_its_time(pool, clock):
    pool.push("later", delay=10.0)
    assert pool.claim("w") is None
    assert pool.size() == 1
    clock.advance(10.0)
    assert pool.claim("w").data == "later"


def test_a_dedup_key_gives_the_job_that_is_waiting_or_running_and_is_free_again_after(pool):
    first = pool.push(1, dedup="k")
    assert pool.push(2, dedup="k") == first
    assert pool.push_many([NewJob(3, dedup="other"), NewJob(4, dedup="other")])[0] != first
    job = pool.claim("w")
    assert pool.push(5, dedup="k") == first
    assert pool.complete(job)
    assert pool.push(6, dedup="k") != first


def test_two_pools_do_not_mix(jobs):
    a, b = jobs.work.pool("a"), jobs.work.pool("b")
    job_id = a.push(1)
    assert b.claim("w") is None
    assert b.get(job_id) is None
    assert a.claim("w").data == 1
    b.push(1)
    assert jobs.work.pools() == ["a", "b"]


def test_a_turn_completes_and_claims_in_one_step(pool, clock):
    pool.push_many([NewJob(n) for n in range(5)])
    batch = pool.turn("w", claim=2).claimed
    done = [Finished(job.id, job.token, {"n": job.data}) for job in batch]
    turn = pool.turn("w", done, claim=10)
    assert turn.accepted == [True, True]
    assert [job.data for job in turn.claimed] == [2, 3, 4]
    kept = pool.get(batch[1].id)
    assert (kept.status, kept.result, kept.finished_at, kept.claimed_by) == (
        JobStatus.DONE,
        {"n": 1},
        clock.now(),
        "w",
    )
    assert pool.turn("w", done, claim=0).accepted == [False, False]
    assert pool.counts().late == 2
    assert (pool.counts().done, pool.counts().claimed, pool.running()) == (2, 3, 3)


def test_a_failed_job_comes_back_after_a_growing_delay_and_is_poisoned_in_the_end(pool, clock):
    job_id = pool.push(1, max_retries=3)
    for delay in (1.0, 2.0):
        assert pool.fail(pool.claim("w"), "boom") is JobStatus.PENDING
        clock.advance(delay - 0.1)
        assert pool.claim("w") is None
        clock.advance(0.1)
    assert pool.fail(pool.claim("w"), "boom at last") is JobStatus.POISONED
    job = pool.get(job_id)
    assert (job.attempts, job.error, job.finished_at) == (3, "boom at last", clock.now())
    assert pool.counts().poisoned == 1
    clock.advance(HOUR)
    assert pool.claim("w") is None
    assert ids(pool.list(JobStatus.POISONED)) == [job_id]


def test_a_result_after_the_reaper_released_the_job_is_ignored_and_counted(pool):
    job_id = pool.push(1)
    old = pool.claim("w1")
    assert pool.release_by_worker("w1") == 1
    new = pool.claim("w2")
    assert new.id == job_id
    assert new.attempts == 2
    assert not pool.complete(old, "late")
    assert pool.fail(old, "late") is None
    assert not pool.report(old.id, old.token, {"fraction": 0.5})
    assert pool.get(job_id).claimed_by == "w2"
    assert pool.complete(new, "good")
    assert pool.get(job_id).result == "good"
    assert pool.counts().late == 1


def test_the_same_worker_cannot_finish_its_old_claim_of_the_same_job(pool):
    pool.push(1)
    old = pool.claim("w1")
    pool.release_by_worker("w1")
    new = pool.claim("w1")
    assert not pool.complete(old)
    assert pool.complete(new)


def test_release_by_worker_takes_only_its_jobs_and_poisons_the_hopeless(pool):
    pool.push_many([NewJob(0, max_retries=1), NewJob(1), NewJob(2)])
    mine = pool.turn("w1", claim=2).claimed
    other = pool.claim("w2")
    assert pool.release_by_worker("w1") == 2
    assert pool.get(mine[0].id).status is JobStatus.POISONED
    assert "w1" in pool.get(mine[0].id).error
    assert pool.get(mine[1].id).status is JobStatus.PENDING
    assert pool.get(mine[1].id).claimed_by is None
    assert pool.get(other.id).claimed_by == "w2"
    assert pool.release_by_worker("w1") == 0


def test_a_claim_ends_with_its_visibility_unless_it_is_extended(pool, clock):
    pool.push_many([NewJob(1), NewJob(2)])
    kept, lost = pool.claim("w1", visibility=10.0), pool.claim("w2", visibility=10.0)
    clock.advance(9.0)
    assert pool.release_expired() == 0
    assert [held.id for held in pool.extend("w1", 10.0)] == [kept.id]
    clock.advance(5.0)
    assert pool.release_expired() == 1
    assert pool.get(lost.id).status is JobStatus.PENDING
    assert pool.extend("w2", 10.0) == []
    assert pool.complete(kept)
    assert pool.extend("w1", 10.0) == []


def test_a_job_returned_by_a_leaving_worker_does_not_lose_an_attempt(pool):
    pool.push(1, max_retries=1)
    job = pool.claim("w1")
    assert pool.give_back(job) is JobStatus.PENDING
    again = pool.claim("w2")
    assert (again.attempts, again.token) == (1, job.token + 1)


def test_a_pending_job_is_cancelled_at_once_and_a_running_one_is_asked(pool):
    waiting, delayed, running = pool.push(1, priority=-1), pool.push(2, delay=5.0), pool.push(3)
    job = pool.claim("w")
    assert job.id == running
    assert pool.cancel(waiting) is JobStatus.CANCELLED
    assert pool.cancel(delayed) is JobStatus.CANCELLED
    assert pool.cancel(running) is JobStatus.CLAIMED
    assert pool.claim("w") is None
    assert [held.cancel_requested for held in pool.extend("w")] == [True]
    assert pool.settle([(job.id, job.token)], Verdict.CANCEL) == [JobStatus.CANCELLED]
    assert pool.counts().cancelled == 3
    assert pool.cancel(running) is JobStatus.CANCELLED


def test_a_job_that_nobody_claimed_belongs_to_nobody(pool):
    waiting, cancelled = pool.push(1), pool.push(2)
    pool.cancel(cancelled)
    assert [pool.get(job).claimed_by for job in (waiting, cancelled)] == [None, None]
    assert [job.claimed_by for job in pool.list()] == [None, None]
    assert pool.release_by_worker("") == 0


def test_a_cancelled_running_job_whose_worker_dies_is_cancelled_not_retried(pool):
    job_id = pool.push(1)
    pool.claim("w")
    pool.cancel(job_id)
    assert pool.release_by_worker("w") == 1
    assert pool.get(job_id).status is JobStatus.CANCELLED


def test_a_done_job_cannot_be_cancelled_or_sent_round_again(pool):
    job_id = pool.push(1)
    pool.complete(pool.claim("w"))
    assert pool.cancel(job_id) is JobStatus.DONE
    assert not pool.requeue(job_id)


def test_requeue_keeps_the_checkpoint_and_gives_fresh_attempts(pool):
    job_id = pool.push(1, max_retries=1)
    job = pool.claim("w")
    assert pool.report(job.id, job.token, {"fraction": 0.4, "note": "day 2"}, {"tick": 40, "rows": []})
    pool.fail(job, "boom")
    assert pool.requeue(job_id)
    assert not pool.requeue(job_id)
    assert pool.counts().poisoned == 0
    again = pool.claim("w")
    assert (again.id, again.attempts, again.checkpoint) == (job_id, 1, {"tick": 40, "rows": []})
    assert pool.get(job_id).progress == {"fraction": 0.4, "note": "day 2"}
    assert pool.get(job_id).error is None
    assert not pool.complete(job)
    assert pool.complete(again)


def test_a_retry_is_handed_the_checkpoint(pool, clock):
    pool.push(1)
    job = pool.claim("w")
    pool.report(job.id, job.token, checkpoint={"tick": 7})
    pool.fail(job)
    clock.advance(HOUR)
    assert pool.claim("w").checkpoint == {"tick": 7}


def test_list_pages_newest_first_and_filters(pool):
    pushed = pool.push_many([NewJob(n) for n in range(7)])
    pool.complete(pool.claim("w"))
    assert ids(pool.list(limit=3)) == pushed[:-4:-1]
    assert ids(pool.list(limit=3, before=pushed[4])) == [pushed[3], pushed[2], pushed[1]]
    assert ids(pool.list(JobStatus.DONE)) == [pushed[0]]
    assert ids(pool.list(JobStatus.PENDING, limit=2)) == [pushed[6], pushed[5]]


def test_counts_say_how_long_the_oldest_has_waited(pool, clock):
    pool.push(1)
    clock.advance(90.0)
    pool.push(2)
    assert pool.counts().pending == 2
    assert pool.counts().oldest_pending_s == pytest.approx(90.0)
    assert pool.counts().open == 2


def test_finished_jobs_are_forgotten_after_their_retention_or_beyond_the_number_kept(pool, clock):
    old = pool.push(0)
    pool.complete(pool.claim("w"))
    bad = pool.push(0, max_retries=1)
    pool.fail(pool.claim("w"))
    clock.advance(10 * HOUR)
    pushed = pool.push_many([NewJob(n) for n in range(4)])
    for job in pool.turn("w", claim=3).claimed:
        pool.complete(job)
    assert pool.trim(5 * HOUR, 20 * HOUR, 100) == 1
    assert pool.get(old) is None
    assert pool.get(bad).status is JobStatus.POISONED
    assert pool.trim(5 * HOUR, 5 * HOUR, 2) == 2
    assert [pool.get(i) is not None for i in [bad, *pushed]] == [False, False, True, True, True]
    assert (pool.counts().done, pool.counts().poisoned, pool.counts().pending) == (2, 0, 1)


def test_thousands_are_pushed_and_finished_in_one_call(pool):
    pushed = pool.push_many([NewJob(n, max_retries=1) for n in range(5000)])
    assert len(set(pushed)) == 5000 == pool.size()
    held = []
    while turn := pool.turn("w1", (), 3000).claimed:
        held += turn
    assert [job.data for job in held] == list(range(5000))
    assert pool.turn("w1", [Finished(job.id, job.token) for job in held], 1).accepted == [True] * 5000
    assert (pool.counts().done, pool.running()) == (5000, 0)


@pytest.mark.parametrize("key", ["plain", "ends in a line\n", "two\nlines"])
def test_a_dedup_key_is_free_again_once_its_job_is_done(pool, key):
    first = pool.push(1, dedup=key)
    pool.complete(pool.claim("w1"))
    assert pool.get(first).dedup == key
    assert pool.push(2, dedup=key) != first


def test_pool_settings_are_kept_for_everybody(jobs):
    assert jobs.work.pool("p").settings() == PoolSettings(10, None)
    jobs.work.pool("p").configure(PoolSettings(3, "image:7"))
    assert jobs.work.pool("p").settings() == PoolSettings(3, "image:7")
    jobs.work.pool("p").configure(PoolSettings(4, None))
    assert jobs.work.pool("p").settings() == PoolSettings(4, None)


def worker(name, **more):
    return WorkerRegistration(name, **more)


def test_a_worker_registers_beats_and_leaves(jobs, clock):
    registry = jobs.registration
    record = registry.register(worker("w1", host="h", pid=7, capabilities=("gpu",), pool="p"))
    assert (record.status, record.started_at, record.host, record.pid) == (
        WorkerStatus.ACTIVE,
        clock.now(),
        "h",
        7,
    )
    clock.advance(30.0)
    assert registry.heartbeat("w1", {"current_task_id": "42"}) is WorkerStatus.ACTIVE
    seen = registry.get("w1")
    assert (seen.last_heartbeat, seen.current_task_id, seen.capabilities, seen.pool) == (
        clock.now(),
        "42",
        ("gpu",),
        "p",
    )
    assert registry.heartbeat("w1", {"memory_mb": 12}) is WorkerStatus.ACTIVE
    assert dict(registry.get("w1").metadata) == {"current_task_id": "42", "memory_mb": 12}
    assert registry.update_status("w1", WorkerStatus.TERMINATED)
    assert registry.get("w1").status is WorkerStatus.TERMINATED
    assert registry.get("nobody") is None
    assert registry.heartbeat("nobody") is WorkerStatus.LOST
    assert not registry.update_status("nobody", WorkerStatus.ACTIVE)


def test_workers_are_filtered_by_status_capability_pool_and_staleness(jobs, clock):
    registry = jobs.registration
    registry.register(worker("a", capabilities=("gpu", "paper"), pool="p"))
    clock.advance(100.0)
    registry.register(worker("b", pool="q"))
    registry.register(worker("c", pool="p"))
    registry.update_status("c", WorkerStatus.TERMINATING)

    def named(**conditions):
        return [w.worker_id for w in registry.list(WorkerFilter(**conditions))]

    assert [w.worker_id for w in registry.list()] == ["a", "b", "c"]
    assert named(capability="gpu") == ["a"]
    assert named(pool="p") == ["a", "c"]
    assert named(status=WorkerStatus.ACTIVE) == ["a", "b"]
    assert named(status=frozenset({WorkerStatus.TERMINATING, WorkerStatus.LOST})) == ["c"]
    assert named(stale_threshold_seconds=60) == ["a"]
    assert named(stale_threshold_seconds=100) == []


def test_a_lost_worker_stays_lost_until_it_registers_anew(jobs, clock):
    registry = jobs.registration
    seen = registry.register(worker("w"))
    assert registry.lose("w", seen.last_heartbeat)
    assert not registry.lose("w", seen.last_heartbeat)
    clock.advance(1.0)
    assert registry.heartbeat("w") is WorkerStatus.LOST
    assert not registry.update_status("w", WorkerStatus.ACTIVE)
    assert registry.get("w").last_heartbeat == seen.last_heartbeat
    registry.register(worker("w"))
    assert registry.heartbeat("w") is WorkerStatus.ACTIVE


def test_a_worker_that_beat_since_it_was_read_is_not_lost(jobs, clock):
    registry = jobs.registration
    seen = registry.register(worker("w"))
    clock.advance(0.001)
    registry.heartbeat("w")
    assert not registry.lose("w", seen.last_heartbeat)
    registry.update_status("w", WorkerStatus.TERMINATED)
    assert not registry.lose("w", registry.get("w").last_heartbeat)


def test_reserve_fills_up_to_the_total_and_counts_starting_ones(jobs):
    registry = jobs.registration
    registry.register(worker("a", pool="p"))
    registry.register(worker("elsewhere", pool="q"))
    registry.register(worker("left", pool="p"))
    registry.update_status("left", WorkerStatus.TERMINATED)
    new = [worker(f"n{i}", pool="p") for i in range(5)]
    assert registry.reserve("p", 3, new) == ["n0", "n1"]
    assert registry.get("n0").status is WorkerStatus.STARTING
    assert registry.reserve("p", 3, new[2:]) == []
    assert registry.reserve("p", 0, new[2:]) == []
    registry.register(new[0])
    assert registry.reserve("p", 4, new[2:]) == ["n2"]


def test_a_terminating_worker_keeps_its_place_until_it_has_left_and_is_lost_when_it_falls_silent(jobs, clock):
    registry = jobs.registration
    registry.register(worker("a", pool="p"))
    assert registry.update_status("a", WorkerStatus.TERMINATING)
    assert registry.heartbeat("a") is WorkerStatus.TERMINATING
    assert registry.reserve("p", 1, [worker("n", pool="p")]) == []
    assert not registry.join(worker("late", pool="p"), 1)
    clock.advance(STALE_AFTER.total_seconds() + 1)
    assert registry.forget(10.0) == 0
    assert reap(jobs, "p", clock).lost == ["a"]
    assert registry.reserve("p", 1, [worker("n", pool="p")]) == ["n"]


def test_who_has_left_is_not_terminating_any_more(jobs):
    registry = jobs.registration
    registry.register(worker("a", pool="p"))
    registry.update_status("a", WorkerStatus.TERMINATED)
    assert registry.reserve("p", 1, [worker("n", pool="p")]) == ["n"]
    assert not registry.update_status("a", WorkerStatus.TERMINATING)
    assert registry.get("a").status is WorkerStatus.TERMINATED


def test_a_worker_joins_while_there_is_room_or_in_its_own_place(jobs):
    registry = jobs.registration
    registry.register(worker("a", pool="p"))
    registry.register(worker("elsewhere", pool="q"))
    (reserved,) = registry.reserve("p", 2, [worker("n", pool="p")])
    assert not registry.join(worker("late", pool="p"), 2)
    assert registry.get("late") is None
    assert registry.join(worker(reserved, host="h", pool="p"), 2), "the place was reserved for it"
    assert (registry.get("n").status, registry.get("n").host) == (WorkerStatus.ACTIVE, "h")
    registry.lose("n", registry.get("n").last_heartbeat)
    assert registry.join(worker("late", pool="p"), 2)
    assert not registry.join(worker("n", pool="p"), 9), "a lost worker does not come back under its id"
    assert registry.get("n").status is WorkerStatus.LOST


def test_workers_that_left_are_forgotten_after_a_while(jobs, clock):
    registry = jobs.registration
    for name in ("left", "lost", "here"):
        registry.register(worker(name))
    registry.update_status("left", WorkerStatus.TERMINATED)
    registry.lose("lost", registry.get("lost").last_heartbeat)
    assert registry.forget(10.0) == 0
    clock.advance(11.0)
    assert registry.forget(10.0) == 2
    assert [w.worker_id for w in registry.list()] == ["here"]


def test_backends_are_chosen_from_yaml(tmp_path, clock):
    shared = {"registration": "sqlite", "work": "sqlite"} | {
        f"{part}_path": f"{tmp_path}/w.sqlite" for part in ("registration", "work")
    }
    connect(shared, clock).work.pool("p").push(1)
    assert connect(f"sqlite:///{tmp_path}/w.sqlite", clock).work.pool("p").size() == 1
    mixed = connect({"registration": "memory", "work": "sqlite", "work_path": f"{tmp_path}/w.sqlite"}, clock)
    assert mixed.work.pool("p").size() == 1
    assert mixed.registration.list() == []


def test_opening_a_new_file_waits_for_another_who_is_making_it(tmp_path):
    path = tmp_path / "jobs.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TABLE their_first (x)")
    other.execute(
        "BEGIN IMMEDIATE"
    )  # the change to WAL fails at once against this, whatever the busy timeout
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(path, timeout=60).execute("PRAGMA journal_mode = WAL")
    with ThreadPoolExecutor() as threads:
        opened = threads.submit(connect, f"sqlite:///{path}")
        with pytest.raises(TimeoutError):
            opened.result(timeout=0.2)
        other.execute("COMMIT")
        assert opened.result(timeout=30).work.pools() == []


def test_an_unknown_backend_is_refused_with_the_known_ones():
    with pytest.raises(Refused, match="memory://"):
        connect("mongo://x")
