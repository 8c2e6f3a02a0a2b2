"""The verification plan of the job pools, number by number, by the command line and real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from muster.clock import SystemClock
from muster.jobs import JobStatus, NewJob, WorkerFilter, WorkerStatus, connect
from muster.jobs import service as owner
from muster.jobs.capacity import ProcessLauncher, check
from muster.jobs.model import LIVE

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0


@pytest.fixture(params=["sqlite", "valkey"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    port = request.getfixturevalue("valkey").connection_pool.connection_kwargs["port"]
    return f"valkey://127.0.0.1:{port}/0"


@pytest.fixture
def jobs(url):
    connection = connect(url)
    yield connection
    for worker in connection.registration.list():
        if worker.pid is not None and worker.status is not WorkerStatus.TERMINATED:
            try:
                os.kill(worker.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def muster(url, tmp_path):
    """`muster jobs ... --json` as a process; its answer, or the exit code when another is expected."""

    def call(*words, code=0, json_out=True):
        command = [sys.executable, "-m", "cli.jobs", *words, "--url", url, *(["--json"] if json_out else [])]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if json_out and done.stdout else done.stderr

    return call


def until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.03)
    return value


def one_job_each(*more):
    given = ["--max-jobs=1", "--no-launch", "--heartbeat=0.5", "--idle-exit=0.5", *more]
    return [f"--worker-option={option}" for option in given]


@pytest.mark.timeout(300)  # thirty processes, one after the other
def test_the_verification_plan(jobs, muster):
    pool = jobs.work.pool("papers")
    live = WorkerFilter(status=LIVE, pool="papers")

    # 1. Seed 10 jobs.
    ids = muster("push", "papers", '{"delay_s": 0.3}', "--count", "10", "--no-check")["ids"]
    assert (len(set(ids)), pool.size()) == (10, 10)

    # 2. Run the checker with at most 3 workers.
    first = muster("check", "papers", "--max-workers", "3", *one_job_each())
    assert len(first["launched"]) == 3

    # 3. Three workers spawn, claim, process, exit.
    until(lambda: not jobs.registration.list(live), "all three have left")
    assert {w.status for w in jobs.registration.list()} == {WorkerStatus.TERMINATED}
    assert (pool.counts().done, pool.counts().pending) == (3, 7)

    # 4. Run the checker again: more workers for the remaining jobs, never over three.
    rounds = []
    while pool.counts().open:
        rounds.append(len(muster("check", "papers", *one_job_each())["launched"]))
        until(lambda: not jobs.registration.list(live), "this round's workers have left")
    assert rounds == [3, 3, 1]

    # 5. All 10 done, no duplicates, no races: one claim each, each by a worker of its own.
    done = [pool.get(i) for i in ids]
    assert [job.status for job in done] == [JobStatus.DONE] * 10
    assert [(job.attempts, job.token) for job in done] == [(1, 1)] * 10
    assert len({job.claimed_by for job in done}) == 10
    assert pool.counts().late == 0

    # 6. Kill a worker mid-job.
    (stuck,) = muster("push", "papers", '{"delay_s": 600}', "--no-check")["ids"]
    (victim,) = muster("check", "papers", *one_job_each())["launched"]
    until(lambda: pool.get(stuck).status is JobStatus.CLAIMED, "the job is claimed")
    os.kill(jobs.registration.get(victim).pid, signal.SIGKILL)

    # 7. Run the reaper. A worker is stale after twice its heartbeat.
    report = until(
        lambda: (r := muster("reap", "papers", "--stale-after", "1"))["lost"] and r,
        "the worker is found stale",
    )
    assert (report["lost"], report["released"]) == ([victim], 1)

    # 8. The job is back in the pool, the worker is lost.
    assert (pool.get(stuck).status, pool.get(stuck).claimed_by) == (JobStatus.PENDING, None)
    assert jobs.registration.get(victim).status is WorkerStatus.LOST
    assert muster("cancel", "papers", stuck)["status"] == "cancelled"

    # 9. Fail a job max_retries times: it is poisoned, not tried again, and can be sent round once more.
    (bad,) = muster("push", "papers", '{"fail": "no such paper"}', "--max-retries", "2", "--no-check")["ids"]

    def tried():
        if not jobs.registration.list(live):
            muster("check", "papers", *one_job_each("--idle-exit=2"))
        return pool.get(bad).status is JobStatus.POISONED

    until(tried, "the job is poisoned")
    (job,) = muster("poisoned", "papers")
    assert (job["id"], job["attempts"]) == (bad, 2)
    assert "no such paper" in job["error"]
    until(lambda: not jobs.registration.list(live), "its workers have left")
    assert muster("check", "papers")["launched"] == []
    assert muster("redrive", "papers", "--dry-run")["ids"] == [bad]
    assert muster("redrive", "papers", *one_job_each())["ids"] == [bad]
    assert "has no job 42" in muster("show", "papers", "42", code=3)


def test_push_wakes_workers_and_waits_with_a_bar_and_the_pool_is_empty_of_workers_after(jobs, muster):
    answer = muster(
        "push", "w", '{"n": 1}', '{"n": 2}', '{"n": 3}', "--wait", "--worker-option=--idle-exit=0.3"
    )
    assert [job["result"] for job in answer["jobs"]] == [{"n": 1}, {"n": 2}, {"n": 3}]
    until(lambda: not jobs.registration.list(WorkerFilter(status=LIVE)), "zero workers without work")
    words = muster(
        "push", "w", '{"fail": "x"}', "--max-retries", "1", "--wait", "--worker-option=--idle-exit=0.3",
        code=1, json_out=False,
    )  # fmt: skip
    assert "100 %" in words
    until(lambda: not jobs.registration.list(WorkerFilter(status=LIVE)), "zero workers again")


def test_a_subprocess_trigger_checks_in_a_process_of_its_own(jobs, muster, tmp_path):
    path = tmp_path / "triggers.yml"
    path.write_text("triggers: [{name: t, type: subprocess, on: work_added}]", encoding="utf-8")
    (job_id,) = muster("push", "w", '{"n": 1}', "--triggers", str(path))["ids"]
    until(lambda: jobs.work.pool("w").get(job_id).status is JobStatus.DONE, "the job is done")


def test_new_workers_run_in_the_pinned_environment_and_running_ones_stay_in_theirs(jobs, muster, tmp_path):
    def release(name):
        """An environment that says, besides being ours, which it is."""
        python = tmp_path / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(
            f'#!/bin/sh\nexport RELEASE={name}\nexec "{sys.executable}" "$@"\n', encoding="utf-8"
        )
        python.chmod(0o755)
        return str(tmp_path / name)

    def release_of(worker_id):
        pid = jobs.registration.get(worker_id).pid
        told = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return [word.decode() for word in told if word.startswith(b"RELEASE=")]

    pool = jobs.work.pool("w")
    options = ["--worker-option=--heartbeat=0.3", "--worker-option=--idle-exit=0.5"]
    old_release, new_release = release("v1"), release("v2")
    assert muster("pin", "w", old_release) == {"pool": "w", "pin": old_release}
    (first,) = muster("push", "w", '{"delay_s": 600}', *options)["ids"]
    old = until(lambda: pool.get(first).claimed_by, "the first is claimed")
    muster("pin", "w", new_release)
    (second,) = muster("push", "w", '{"delay_s": 600}', *options)["ids"]
    new = until(lambda: pool.get(second).claimed_by, "the second is claimed")
    assert (release_of(old), release_of(new)) == (["RELEASE=v1"], ["RELEASE=v2"])
    assert jobs.registration.get(new).metadata["pin"] == new_release
    assert pool.get(first).claimed_by == old
    assert "python -m venv" in muster("pin", "w", "repo/sim:3", code=4)
    for job_id in (first, second):
        muster("cancel", "w", job_id)
        until(lambda i=job_id: pool.get(i).status is JobStatus.CANCELLED, "cancelled")


def test_a_job_pushed_while_the_last_worker_leaves_still_runs_without_another_enqueue(jobs, url, tmp_path):
    """The idle exit, hit at ever different moments: nothing is enqueued after the job that must run."""
    pool = jobs.work.pool("w")
    launch = ProcessLauncher(url, ("--idle-exit=0.2", "--heartbeat=0.5"), tmp_path / "logs")
    for n in range(12):
        owner.enqueue(jobs, "w", [NewJob({"n": n})], lambda name: check(jobs, name, launch, SystemClock()))
        until(lambda: pool.counts().open == 0, f"job {n} is done")
        # Push the next one somewhere around the moment the idle grace ends.
        moment = time.monotonic() + 0.16 + 0.01 * n
        while time.monotonic() < moment:
            pool.size()
    assert pool.counts().done == 12
    until(lambda: not jobs.registration.list(WorkerFilter(status=LIVE)), "zero workers without work")
