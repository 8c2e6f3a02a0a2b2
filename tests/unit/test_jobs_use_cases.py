"""Capacity, reaper, owner's verbs and triggers, in memory on a clock that moves only when told."""

from __future__ import annotations

import threading

import pytest

from muster.clock import FakeClock
from muster.errors import Refused
from muster.jobs import JobStatus, NewJob, PoolSettings, WorkerRegistration, WorkerStatus, connect
from muster.jobs import service as owner
from muster.jobs import triggers as trig
from muster.jobs.capacity import check, ensure_capacity, wanted_workers
from muster.jobs.model import HEARTBEAT, STALE_AFTER
from muster.jobs.reaper import reap

STALE = STALE_AFTER.total_seconds()


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def jobs(clock):
    return connect("memory://", clock)


@pytest.fixture
def pool(jobs):
    return jobs.work.pool("p")


class Launches(list):
    """A launcher that only notes what it was asked."""

    def __call__(self, pool, worker_id, pin):
        self.append((pool, worker_id, pin))


def nothing(pool):
    return None


def test_the_stale_threshold_is_twice_the_heartbeat():
    assert STALE_AFTER == 2 * HEARTBEAT


@pytest.mark.parametrize(
    ("queued", "running", "most", "wanted"), [(0, 0, 10, 0), (3, 0, 10, 3), (3, 9, 10, 10), (0, 2, 1, 1)]
)
def test_wanted_workers_is_the_smaller_of_maximum_and_open_jobs(queued, running, most, wanted):
    assert wanted_workers(queued, running, most) == wanted


def test_capacity_launches_one_worker_per_open_job_up_to_the_maximum(jobs, pool):
    pool.configure(PoolSettings(max_workers=3, pin="image:7"))
    pool.push_many([NewJob(n) for n in range(10)])
    launch = Launches()
    report = ensure_capacity(jobs, "p", launch)
    assert report.wanted == 3
    assert [(p, pin) for p, _, pin in launch] == [("p", "image:7")] * 3
    assert len(set(report.launched)) == 3


def test_starting_workers_count_so_a_second_check_launches_nothing(jobs, pool):
    pool.push_many([NewJob(n) for n in range(4)])
    assert len(ensure_capacity(jobs, "p", Launches()).launched) == 4
    assert ensure_capacity(jobs, "p", Launches()).launched == []


def test_no_work_means_no_worker(jobs):
    launch = Launches()
    assert ensure_capacity(jobs, "p", launch).wanted == 0
    assert launch == []


def test_running_jobs_keep_their_workers_counted(jobs, pool):
    pool.push_many([NewJob(n) for n in range(2)])
    jobs.registration.register(WorkerRegistration("w", pool="p"))
    pool.claim("w")
    assert len(ensure_capacity(jobs, "p", Launches()).launched) == 1


def test_a_failed_launch_does_not_raise_and_frees_its_place(jobs, pool):
    pool.push(1)

    def broken(*_):
        raise OSError("no capacity in the zone")

    report = ensure_capacity(jobs, "p", broken)
    assert report.launched == []
    assert report.failed == ["no capacity in the zone"]
    assert len(ensure_capacity(jobs, "p", Launches()).launched) == 1


def test_a_backend_that_is_away_does_not_raise_into_the_enqueue_path(jobs, pool, monkeypatch):
    monkeypatch.setattr(type(pool), "size", lambda self: 1 / 0)
    assert ensure_capacity(jobs, "p", Launches()).failed == ["division by zero"]


def test_two_checks_at_once_never_launch_more_than_the_maximum(jobs, pool):
    pool.configure(PoolSettings(max_workers=5))
    pool.push_many([NewJob(n) for n in range(50)])
    launch, gate = Launches(), threading.Barrier(8)

    def one():
        gate.wait()
        ensure_capacity(jobs, "p", launch)

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(launch) == 5


def test_the_reaper_marks_the_stale_lost_and_releases_their_jobs(jobs, pool, clock):
    for name in ("stale", "fresh"):
        jobs.registration.register(WorkerRegistration(name, pool="p"))
    pool.push_many([NewJob(1), NewJob(2)])
    held = pool.claim("stale", visibility=1000), pool.claim("fresh", visibility=1000)
    clock.advance(STALE)
    jobs.registration.heartbeat("fresh")
    assert reap(jobs, "p", clock).lost == []
    clock.advance(0.1)
    report = reap(jobs, "p", clock)
    assert (report.lost, report.released) == (["stale"], 1)
    assert jobs.registration.get("stale").status is WorkerStatus.LOST
    assert pool.get(held[0].id).status is JobStatus.PENDING
    assert pool.get(held[1].id).claimed_by == "fresh"
    assert not pool.complete(held[0], "late")


def test_the_reaper_poisons_a_job_that_kills_its_workers(jobs, pool, clock):
    job_id = pool.push(1, max_retries=2)
    for n in range(2):
        jobs.registration.register(WorkerRegistration(f"w{n}", pool="p"))
        assert pool.claim(f"w{n}").id == job_id
        clock.advance(STALE + 1)
        reap(jobs, "p", clock)
    assert pool.get(job_id).status is JobStatus.POISONED


def test_the_reaper_ends_claims_whose_visibility_is_over_though_nobody_registered(jobs, pool, clock):
    job_id = pool.push(1)
    pool.claim("stranger", visibility=10.0)
    clock.advance(11.0)
    assert reap(jobs, "p", clock).released == 1
    assert pool.get(job_id).status is JobStatus.PENDING


def test_the_reaper_forgets_old_results_but_not_on_an_enqueue(jobs, pool, clock):
    job_id = pool.push(1)
    pool.complete(pool.claim("w"))
    clock.advance(8 * 86400)
    assert check(jobs, "p", Launches(), clock, trim=False).reaped.trimmed == 0
    assert check(jobs, "p", Launches(), clock).reaped.trimmed == 1
    assert pool.get(job_id) is None


def test_the_reaper_leaves_other_pools_alone(jobs, clock):
    jobs.registration.register(WorkerRegistration("w", pool="other"))
    clock.advance(10 * STALE)
    assert reap(jobs, "p", clock).lost == []


def test_a_lost_launch_is_given_up_after_the_patience_of_a_launch_and_replaced(jobs, pool, clock):
    pool.push(1)
    ensure_capacity(jobs, "p", Launches())
    clock.advance(STALE + 1)
    assert check(jobs, "p", Launches(), clock).capacity.launched == []
    clock.advance(300)
    report = check(jobs, "p", Launches(), clock)
    assert len(report.reaped.lost) == 1
    assert len(report.capacity.launched) == 1


def test_enqueue_pushes_before_it_wakes(jobs, pool):
    seen = []
    ids = owner.enqueue(jobs, "p", [NewJob(1), NewJob(2)], lambda name: seen.append((name, pool.size())))
    assert seen == [("p", 2)]
    assert [pool.get(i).data for i in ids] == [1, 2]


def test_a_wake_that_fails_does_not_look_like_a_push_that_failed(jobs, pool):
    def broken(name):
        raise OSError("no route")

    (job_id,) = owner.enqueue(jobs, "p", [NewJob(1)], broken)
    assert pool.get(job_id).status is JobStatus.PENDING


def test_resume_continues_a_poisoned_job_from_its_checkpoint(jobs, pool):
    job_id = pool.push(1, max_retries=1)
    job = pool.claim("w")
    pool.report(job.id, job.token, checkpoint={"tick": 5})
    pool.fail(job)
    woken = []
    owner.resume(jobs, "p", job_id, woken.append)
    assert woken == ["p"]
    assert pool.claim("w").checkpoint == {"tick": 5}


def test_resume_refuses_what_is_done_or_on_its_way_and_says_what_to_do(jobs, pool):
    job_id = pool.push(1)
    with pytest.raises(Refused, match="on its way"):
        owner.resume(jobs, "p", job_id, nothing)
    pool.complete(pool.claim("w"))
    with pytest.raises(Refused, match="rerun"):
        owner.resume(jobs, "p", job_id, nothing)
    with pytest.raises(owner.NoSuchJob, match="muster jobs ls p"):
        owner.resume(jobs, "p", "123", nothing)


def test_rerun_is_a_new_job_without_checkpoint_linked_to_the_old(jobs, pool):
    old = pool.push({"x": 1}, kind="backtest", priority=4, time_limit=9.0)
    job = pool.claim("w")
    pool.report(job.id, job.token, checkpoint={"tick": 5})
    pool.complete(job)
    new = pool.get(owner.rerun(jobs, "p", old, nothing))
    assert new.id != old
    assert (new.parent, new.data, new.kind, new.priority, new.time_limit) == (
        old,
        {"x": 1},
        "backtest",
        4,
        9.0,
    )
    assert new.checkpoint is None


def test_redrive_sends_every_poisoned_job_round_again(jobs, pool):
    bad = pool.push_many([NewJob(n, max_retries=1) for n in range(3)])
    for job in pool.turn("w", claim=3).claimed:
        pool.fail(job)
    assert sorted(owner.redrive(jobs, "p", nothing)) == bad
    assert pool.counts().pending == 3
    assert owner.redrive(jobs, "p", nothing) == []


def test_cancel_refuses_what_has_ended(jobs, pool):
    job_id = pool.push(1)
    pool.complete(pool.claim("w"))
    with pytest.raises(Refused, match="already done"):
        owner.cancel(jobs, "p", job_id)


def test_a_pin_changes_new_workers_and_keeps_the_limit(jobs, pool):
    owner.limit(jobs, "p", 3)
    owner.pin(jobs, "p", "repo/sim:42")
    assert pool.settings() == PoolSettings(3, "repo/sim:42")
    pool.push(1)
    launch = Launches()
    ensure_capacity(jobs, "p", launch)
    assert launch[0][2] == "repo/sim:42"


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_the_example_triggers_load_and_cron_gets_its_line():
    from pathlib import Path

    loaded = trig.load(Path("examples/triggers.yml"))
    assert {trigger.type for trigger in loaded} == set(trig.TriggerType)
    line = trig.cron_line(loaded[0], ["--url", "sqlite:////srv/jobs.db"])
    assert line == "*/5 * * * * muster jobs check backtests --url sqlite:////srv/jobs.db"


def test_a_cron_line_survives_the_shell_and_cron_itself():
    nightly = trig.Trigger("n", trig.TriggerType.CRON, pool="p", schedule="@daily")
    line = trig.cron_line(nightly, ["--url", "sqlite:////a%20b/jobs.db?synchronous=normal"])
    assert line == r"@daily muster jobs check p --url 'sqlite:////a\%20b/jobs.db?synchronous=normal'"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "list named 'triggers'"),
        ("triggers: soon", "list named 'triggers'"),
        ("triggers: [", "t.yml: .*expected"),
        ("triggers: [now]", "entry 1 must be a mapping"),
        ("triggers: [{type: cron}]", "entry 1 must be a mapping with a name"),
        ("triggers: [{name: a}]", "a: .*in-loop"),
        ("triggers: [{name: a, type: [cron]}]", "a: .*in-loop"),
        ("triggers: [{name: a, type: carrier-pigeon}]", "a: .*in-loop"),
        ("triggers: [{name: b, type: cron}]", "b: .*schedule"),
        ("triggers: [{name: b, type: cron, schedule: '*/5 * * * *'}]", "b: .*pool_id"),
        ("triggers: [{name: b, type: cron, schedule: '*/5', input: {pool_id: p}}]", "b: .*schedule"),
        (
            'triggers: [{name: b, type: cron, schedule: "* * * * *\\n* * * * *", input: {pool_id: p}}]',
            "schedule",
        ),
        ("triggers: [{name: b, type: cron, schedule: 5, input: {pool_id: p}}]", "schedule must be text"),
        ("triggers: [{name: b, type: cron, shedule: '@daily', input: {pool_id: p}}]", "shedule: no such key"),
        ("triggers: [{name: b, type: cron, schedule: '@daily', input: {pool_id: '-p'}}]", "'-p' is no name"),
        ("triggers: [{name: b, type: cron, schedule: '@daily', input: p}]", "input may hold pool_id"),
        (
            "triggers: [{name: b, type: cron, schedule: '@daily', on: work_added, input: {pool_id: p}}]",
            "'on'",
        ),
        ("triggers: [{name: c, type: webhook, on: work_added}]", "c: .*url"),
        ("triggers: [{name: c, type: webhook, on: work_added, url: 'file:///etc'}]", "c: .*https://"),
        ("triggers: [{name: d, type: in-loop}]", "d: without 'on: work_added'"),
        ("triggers: [{name: d, type: in-loop, on: work_aded}]", "d: without 'on: work_added'"),
        (
            "triggers: [{name: d, type: in-loop, on: work_added, machine: job_worker}]",
            "parallelization_checker",
        ),
        ("triggers: [{name: d, type: in-loop, on: work_added}, {name: d, type: cron}]", "d: used twice"),
    ],
)
def test_a_wrong_trigger_is_refused_by_name(tmp_path, text, hint):
    with pytest.raises(Refused, match=hint):
        trig.load(write(tmp_path / "t.yml", text))


def test_a_file_of_triggers_that_is_not_there_is_refused_by_its_path(tmp_path):
    with pytest.raises(Refused, match=r"none\.yml.*No such file"):
        trig.load(tmp_path / "none.yml")


def test_work_added_fires_only_the_triggers_of_that_event_and_pool(tmp_path):
    path = write(
        tmp_path / "t.yml",
        "triggers:\n"
        " - {name: a, type: subprocess, on: work_added}\n"
        " - {name: b, type: lambda, on: work_added, input: {pool_id: q}}\n"
        " - {name: c, type: cron, schedule: '@daily', input: {pool_id: p}}\n",
    )
    spawned, invoked = [], []
    effects = trig.Effects(
        check=nothing,
        jobs_url="sqlite:///x.db",
        invoke=lambda *call: invoked.append(call),
        spawn=spawned.append,
    )
    work_added = trig.on_work_added(trig.load(path), effects)
    work_added("p")
    assert [command[-5:] for command in spawned] == [["cli.jobs", "check", "p", "--url", "sqlite:///x.db"]]
    assert invoked == []
    work_added("q")
    assert invoked == [("pool_manager", {"source": "muster.jobs", "pool_id": "q"})]


def test_an_in_loop_trigger_does_not_block_the_caller_and_does_not_raise():
    release, done = threading.Event(), threading.Event()

    def slow_and_broken(pool):
        release.wait(10)
        done.set()
        raise OSError("away")

    effects = trig.Effects(check=slow_and_broken, jobs_url="memory://")
    trig.fire(trig.Trigger("t", trig.TriggerType.IN_LOOP), "p", effects)
    assert not done.is_set()
    release.set()
    assert done.wait(10)


def test_a_trigger_that_fails_does_not_raise_into_the_enqueue_path(jobs):
    def broken(command):
        raise OSError("no more processes")

    effects = trig.Effects(check=nothing, jobs_url="memory://", spawn=broken)
    trigger = trig.Trigger("t", trig.TriggerType.SUBPROCESS, on=trig.WORK_ADDED)
    ids = owner.enqueue(jobs, "p", [NewJob(1)], trig.on_work_added([trigger], effects))
    assert jobs.work.pool("p").get(ids[0]).status is JobStatus.PENDING
