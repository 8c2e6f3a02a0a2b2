"""The job worker as a real process, on SQLite and Valkey, with processors that misbehave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local.valkey import EmbeddedValkey
from muster.clock import SystemClock
from muster.jobs import (
    JobStatus,
    NewJob,
    PoolSettings,
    WorkerFilter,
    WorkerRegistration,
    WorkerStatus,
    connect,
)
from muster.jobs.capacity import check
from muster.jobs.model import LIVE
from muster.jobs.reaper import reap
from worker.jobs import JobWorker, parse

ROOT = Path(__file__).parents[2]
KINDS = ["crash", "leave", "vanish", "killed", "forever", "deaf", "greedy", "unspeakable", "gentle", "steps"]
PATIENCE_S = 60.0


def until(condition, what):
    """The condition's first true value; fails with `what` after a generous deadline."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)
    return value


class Workers:
    """Starts worker processes and leaves none behind."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder, self.started = url, folder, []

    def start(self, *options: str, pool: str = "p") -> subprocess.Popen:
        command = [sys.executable, "-m", "worker.jobs", "--url", self.url, "--pool", pool, "--no-launch"]
        command += ["--heartbeat", "0.5", "--idle-exit", "0.3", "--results", str(self.folder / "results")]
        for kind in KINDS:
            command += ["--processor", f"{kind}=tests.integration.jobs_processors:{kind}"]
        log = (self.folder / f"worker-{len(self.started)}.log").open("wb")
        process = subprocess.Popen([*command, *options], cwd=ROOT, stdout=log, stderr=log)
        log.close()
        self.started.append(process)
        return process

    def run(self, *options: str) -> int:
        return self.start(*options).wait(timeout=PATIENCE_S)

    def end(self) -> None:
        for process in self.started:
            process.kill()
            process.wait()


@pytest.fixture(params=["sqlite", "valkey"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    port = request.getfixturevalue("valkey").connection_pool.connection_kwargs["port"]
    return f"valkey://127.0.0.1:{port}/0"


@pytest.fixture
def jobs(url):
    return connect(url)


@pytest.fixture
def pool(jobs):
    return jobs.work.pool("p")


@pytest.fixture
def workers(url, tmp_path):
    group = Workers(url, tmp_path)
    yield group
    group.end()


def test_a_worker_drains_the_pool_then_leaves_with_zero(jobs, pool, workers):
    ids = pool.push_many([NewJob({"n": n}) for n in range(30)] + [NewJob(7, kind="gentle")])
    assert workers.run("--batch", "4", "--capability", "gpu") == 0
    assert [pool.get(i).result for i in ids] == [{"n": n} for n in range(30)] + [{"async": 7}]
    (worker,) = jobs.registration.list()
    assert (worker.status, worker.capabilities, worker.pool) == (WorkerStatus.TERMINATED, ("gpu",), "p")


def test_max_jobs_one_claims_a_single_job_and_leaves(pool, workers):
    pool.push_many([NewJob({"n": n}) for n in range(3)])
    assert workers.run("--max-jobs", "1") == 0
    assert (pool.counts().done, pool.counts().pending) == (1, 2)


def test_a_worker_that_leaves_after_its_last_allowed_job_sees_to_its_successor(url, jobs, pool, tmp_path):
    pool.configure(PoolSettings(max_workers=1))
    pool.push_many([NewJob({"n": n}) for n in range(2)])
    options = parse(["--url", url, "--pool", "p", "--max-jobs", "1", "--results", str(tmp_path)])
    launches = []
    handlers = [(number, signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT)]
    try:
        assert JobWorker(options, lambda pool, worker, pin: launches.append(worker)).run() == 0
    finally:
        for number, handler in handlers:
            signal.signal(number, handler)
    assert (pool.counts().done, pool.counts().pending) == (1, 1)
    assert [w.worker_id for w in jobs.registration.list(WorkerFilter(status=LIVE))] == launches
    assert len(launches) == 1


def test_a_launch_that_comes_after_its_place_was_given_away_leaves_again(jobs, pool, workers):
    pool.configure(PoolSettings(max_workers=1))
    (late,) = jobs.registration.reserve("p", 1, [WorkerRegistration("late", pool="p")])
    jobs.registration.lose(late, jobs.registration.get(late).last_heartbeat)
    jobs.registration.reserve("p", 1, [WorkerRegistration("next", pool="p")])
    pool.push({"n": 1})
    assert workers.run("--worker-id", late) == 0
    assert (pool.counts().pending, jobs.registration.get(late).status) == (1, WorkerStatus.LOST)
    jobs.registration.update_status("next", WorkerStatus.TERMINATED)
    assert workers.run("--worker-id", late) == 0
    assert pool.counts().done == 1, "there is room: it works, under another id"
    assert jobs.registration.get(late).status is WorkerStatus.LOST


def test_a_worker_restarted_in_place_gives_back_what_its_life_before_held(jobs, pool, workers):
    job_id = pool.push({"n": 1})
    jobs.registration.register(WorkerRegistration("same", pool="p"))
    assert pool.claim("same", visibility=600.0).id == job_id
    assert workers.run("--worker-id", "same") == 0
    assert (pool.get(job_id).status, pool.get(job_id).attempts) == (JobStatus.DONE, 2)


def test_bad_user_code_fails_its_job_alone(pool, workers):
    bad = {kind: pool.push({}, kind=kind, max_retries=1) for kind in ("crash", "leave", "vanish", "killed")}
    bad["unspeakable"] = pool.push({}, kind="unspeakable", max_retries=1)
    bad["unknown"] = pool.push({}, kind="unknown", max_retries=1)
    bad["forever"] = pool.push({}, kind="forever", max_retries=1, time_limit=0.5)
    good = pool.push({"after": "all that"})
    assert workers.run("--batch", "3") == 0
    errors = {}
    for kind, job_id in bad.items():
        job = pool.get(job_id)
        assert (job.status, job.attempts) == (JobStatus.POISONED, 1), kind
        errors[kind] = job.error
    assert "SIGSEGV" in errors["crash"]
    assert "SystemExit: 7" in errors["leave"]
    assert "exited with 9" in errors["vanish"]
    assert "SIGKILL" in errors["killed"]
    assert "not JSON serializable" in errors["unspeakable"]
    assert "no processor" in errors["unknown"]
    assert "time limit of 0.5 s" in errors["forever"]
    assert "MB" in errors["forever"]
    assert pool.get(good).status is JobStatus.DONE


def test_a_job_over_the_memory_limit_is_killed_alone_and_its_memory_reported(pool, workers):
    bad, good = pool.push({}, kind="greedy", max_retries=1), pool.push({"n": 1})
    assert workers.run("--memory-limit-mb", "300") == 0
    assert "more than 300 MB" in pool.get(bad).error
    assert pool.get(good).status is JobStatus.DONE


def test_work_that_hogs_the_interpreter_does_not_stop_the_heartbeat(jobs, pool, workers, tmp_path):
    go = tmp_path / "go"
    job_id = pool.push({"until": str(go)}, kind="deaf")
    process = workers.start()
    until(lambda: pool.get(job_id).status is JobStatus.CLAIMED, "the job is claimed")
    first = until(jobs.registration.list, "a worker")[0].last_heartbeat
    until(lambda: jobs.registration.list()[0].last_heartbeat > first + 1.5, "three more beats")
    assert reap(jobs, "p", SystemClock(), stale_after=5.0).lost == []
    until(lambda: jobs.registration.list()[0].current_task_id == job_id, "the beat names the job")
    assert jobs.registration.list()[0].metadata["memory_mb"] > 1
    go.touch()
    assert process.wait(timeout=PATIENCE_S) == 0
    assert pool.get(job_id).result == "ended by itself"


def test_a_running_job_is_cancelled_and_the_worker_goes_on(pool, workers):
    job_id = pool.push({"delay_s": 600})
    process = workers.start()
    until(lambda: pool.get(job_id).status is JobStatus.CLAIMED, "the job is claimed")
    other = pool.push({"n": 2})
    assert pool.cancel(job_id) is JobStatus.CLAIMED
    assert process.wait(timeout=PATIENCE_S) == 0
    assert pool.get(job_id).status is JobStatus.CANCELLED
    assert pool.get(other).status is JobStatus.DONE


def test_sigterm_returns_the_job_with_its_checkpoint_and_the_next_worker_continues(jobs, pool, workers):
    job_id = pool.push({}, kind="steps", max_retries=1)
    process = workers.start()
    until(lambda: pool.get(job_id).checkpoint == {"step": 5}, "step 5 is saved")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 0
    job = pool.get(job_id)
    assert (job.status, job.attempts) == (JobStatus.PENDING, 0)
    assert workers.run() == 0
    assert pool.get(job_id).result == {"started_at": 5}


def test_sigterm_lets_a_short_job_finish(jobs, pool, workers, tmp_path):
    go, begun = tmp_path / "go", tmp_path / "begun"
    job_id = pool.push({"until": str(go), "begun": str(begun)}, kind="deaf")
    rest = pool.push({"n": 1})
    process = workers.start("--batch", "2")
    until(begun.exists, "the job has begun")
    process.send_signal(signal.SIGTERM)
    until(lambda: jobs.registration.list()[0].status is WorkerStatus.TERMINATING, "it has heard")
    go.touch()
    assert process.wait(timeout=PATIENCE_S) == 0
    assert pool.get(job_id).status is JobStatus.DONE
    assert (pool.get(rest).status, pool.get(rest).attempts) == (JobStatus.PENDING, 0)


def test_a_worker_that_was_told_to_stop_says_so_at_once_and_keeps_its_place_until_it_has_left(
    jobs, pool, workers, tmp_path
):
    pool.configure(PoolSettings(max_workers=1))
    go, begun = tmp_path / "go", tmp_path / "begun"
    job_id = pool.push({"until": str(go), "begun": str(begun)}, kind="deaf")
    # The next heartbeat would come after this test has given up.
    process = workers.start("--heartbeat", str(2 * PATIENCE_S))
    until(begun.exists, "the job has begun")
    assert jobs.registration.list()[0].status is WorkerStatus.ACTIVE
    process.send_signal(signal.SIGTERM)
    until(lambda: jobs.registration.list()[0].status is WorkerStatus.TERMINATING, "it says that it leaves")
    pool.push({"n": 2})
    launches = []
    checked = check(jobs, "p", lambda *launch: launches.append(launch), SystemClock(), 2 * PATIENCE_S)
    assert (checked.reaped.lost, launches) == ([], [])
    go.touch()
    assert process.wait(timeout=PATIENCE_S) == 0
    assert pool.get(job_id).status is JobStatus.DONE
    assert jobs.registration.list()[0].status is WorkerStatus.TERMINATED
    check(jobs, "p", lambda *launch: launches.append(launch), SystemClock(), 2 * PATIENCE_S)
    assert len(launches) == 1


def test_sigterm_takes_back_a_job_that_does_not_end_in_time(pool, workers, tmp_path):
    begun = tmp_path / "begun"
    job_id = pool.push({"until": "/never", "begun": str(begun)}, kind="deaf")
    process = workers.start("--drain", "0.5")
    until(begun.exists, "the job has begun")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=PATIENCE_S) == 0
    assert (pool.get(job_id).status, pool.get(job_id).attempts) == (JobStatus.PENDING, 0)


def test_a_worker_killed_outright_takes_its_child_along_and_the_reaper_frees_its_job(jobs, pool, workers):
    job_id = pool.push({"until": "/never"}, kind="deaf")
    process = workers.start()
    until(lambda: pool.get(job_id).status is JobStatus.CLAIMED, "the job is claimed")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.kill()
    process.wait()
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), "the child is gone")
    report = until(lambda: (r := reap(jobs, "p", SystemClock(), 1.0)).lost and r, "the worker is lost")
    assert report.released == 1
    assert pool.get(job_id).status is JobStatus.PENDING


def test_a_paused_worker_that_was_reaped_drops_its_late_result_and_leaves(jobs, pool, workers, tmp_path):
    go = tmp_path / "go"
    job_id = pool.push({"until": str(go)}, kind="deaf")
    process = workers.start()
    until(lambda: pool.get(job_id).status is JobStatus.CLAIMED, "the job is claimed")
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(process.pid, signal.SIGSTOP)
    os.kill(int(child), signal.SIGSTOP)
    until(lambda: reap(jobs, "p", SystemClock(), 1.0).lost, "the paused worker is lost")
    other = pool.claim("other")
    assert other.id == job_id
    go.touch()
    os.kill(int(child), signal.SIGCONT)
    until(lambda: pool.counts().late == 1, "the late result was ignored and counted")
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(timeout=PATIENCE_S) in (0, 4)
    assert pool.get(job_id).claimed_by == "other"
    assert pool.complete(other, "good")
    assert pool.get(job_id).result == "good"


def test_a_server_that_goes_away_for_a_moment_loses_nothing(tmp_path):
    server = EmbeddedValkey(tmp_path / "server", persist=True, options=["--appendfsync", "always"]).start()
    own = Workers(f"valkey://127.0.0.1:{server.port}/0", tmp_path)
    try:
        process = own.start("--idle-exit", "3")
        pool = connect(own.url).work.pool("p")
        ids = pool.push_many([NewJob({"delay_s": 0.02, "n": n}) for n in range(100)])
        until(lambda: pool.counts().done > 10, "some are done")
        server.kill()
        server.start()
        assert process.wait(timeout=PATIENCE_S) == 0
        assert pool.counts().done == len(ids)
    finally:
        own.end()
        server.kill()
