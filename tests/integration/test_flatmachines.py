"""The real FlatMachines engine runs the three example machines on our backends."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import flatmachines as fm
import pytest
from flatmachines.actions import MachineInvoker

from examples.flatmachines.hooks import machine
from local.driver import until
from muster.clock import FakeClock
from muster.jobs import JobStatus
from muster.jobs import connect as connect_sync
from muster.jobs.flatmachines import connect

ROOT = Path(__file__).parents[2]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture(params=["sqlite", "valkey"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    port = request.getfixturevalue("valkey").connection_pool.connection_kwargs["port"]
    return f"valkey://127.0.0.1:{port}/0"


def test_the_face_fulfils_their_protocols(url):
    jobs = connect(url)
    assert isinstance(jobs.registration, fm.RegistrationBackend)
    assert isinstance(jobs.work, fm.WorkBackend)
    assert isinstance(jobs.work.pool("p"), fm.WorkPool)


def test_the_checker_runs_a_worker_per_job_up_to_the_maximum_until_all_are_done(url):
    async def story():
        jobs = connect(url)
        pool = jobs.work.pool("papers")
        ids = [await pool.push({"n": n}) for n in range(10)]
        asked = {"pool_id": "papers", "max_workers": 3}
        spawned = []
        while await pool.size():
            answer = await machine("parallelization_checker", jobs).execute(input=asked)
            spawned.append(answer["spawned"])
        return ids, spawned, await jobs.registration.list()

    ids, spawned, workers = asyncio.run(story())
    assert spawned == [3, 3, 3, 1]
    kept = [connect_sync(url).work.pool("papers").get(i) for i in ids]
    assert [(job.status, job.result, job.token) for job in kept] == [
        (JobStatus.DONE, {"n": n}, 1) for n in range(10)
    ]
    assert len({job.claimed_by for job in kept}) == 10
    assert {worker.status for worker in workers} == {"terminated"}


def test_a_failing_job_is_retried_and_poisoned(url, clock):
    async def story():
        jobs = connect(url, clock)
        job_id = await jobs.work.pool("p").push({"fail": "no such paper"}, {"max_retries": 2})
        for n in range(3):
            await machine("job_worker", jobs).execute(input={"pool_id": "p", "worker_id": f"w{n}"})
            clock.advance(60.0)
        return job_id

    job = connect_sync(url, clock).work.pool("p").get(asyncio.run(story()))
    assert (job.status, job.attempts) == (JobStatus.POISONED, 2)
    assert "no such paper" in job.error


def test_the_reaper_marks_the_silent_lost_and_a_late_result_is_dropped(url, clock):
    async def story():
        jobs = connect(url, clock)
        pool = jobs.work.pool("p")
        job_id = await pool.push({"n": 1})
        await jobs.registration.register(fm.WorkerRegistration("silent"))
        assert (await pool.claim("silent")).id == job_id
        clock.advance(61.0)
        await jobs.registration.register(fm.WorkerRegistration("fresh"))
        asked = {"pool_id": "p", "stale_threshold_seconds": 60}
        answer = await machine("stale_worker_reaper", jobs).execute(input=asked)
        assert answer == {"reaped_count": 1, "jobs_released": 1}
        assert (await jobs.registration.get("silent")).status == "lost"
        assert (await jobs.registration.get("fresh")).status == "active"
        with pytest.raises(KeyError):
            await jobs.registration.heartbeat("silent")
        other = connect(url, clock)
        again = await other.work.pool("p").claim("fresh")
        assert (again.id, again.attempts) == (job_id, 2)
        await pool.complete(job_id, "late")
        await other.work.pool("p").complete(job_id, "good")
        with pytest.raises(KeyError):
            await pool.complete(job_id, "again")
        return job_id

    job_id = asyncio.run(story())
    pool = connect_sync(url, clock).work.pool("p")
    assert (pool.get(job_id).result, pool.counts().late) == ("good", 1)


def test_the_registry_speaks_their_words(url, clock):
    async def story():
        registry = connect(url, clock).registration
        record = await registry.register(fm.WorkerRegistration("w", host="h", pid=1, capabilities=["gpu"]))
        assert (record.status, record.capabilities) == ("active", ["gpu"])
        await registry.heartbeat("w", {"current_task_id": "7"})
        assert (await registry.get("w")).current_task_id == "7"
        found = await registry.list(fm.WorkerFilter(status="active", capability="gpu"))
        assert [worker.worker_id for worker in found] == ["w"]
        assert await registry.list(fm.WorkerFilter(status="lost")) == []
        with pytest.raises(KeyError):
            await registry.update_status("nobody", "terminated")
        assert await registry.get("nobody") is None

    asyncio.run(story())


def with_heartbeat(folder, interval):
    """The machines of the example, with another heartbeat in their YAML."""
    copy = folder / "machines"
    shutil.copytree(ROOT / "examples/flatmachines", copy)
    worker = (copy / "job_worker.yml").read_text(encoding="utf-8")
    assert worker.count("heartbeat_interval: 30 ") == 1
    changed = worker.replace("heartbeat_interval: 30 ", f"heartbeat_interval: {interval} ")
    (copy / "job_worker.yml").write_text(changed, encoding="utf-8")
    return copy


def test_a_job_that_takes_longer_than_the_reapers_patience_keeps_its_worker(url, tmp_path):
    """A worker that does not beat is lost once a second has passed; this job takes three times as long."""
    folder = with_heartbeat(tmp_path, 0.1)

    async def story():
        jobs = connect(url)
        job_id = await jobs.work.pool("p").push({"delay_s": 3.0})
        worker = machine("job_worker", jobs, folder=folder)
        asked = {"pool_id": "p", "stale_threshold_seconds": 1.0}
        reaped, at_work = 0, asyncio.create_task(worker.execute(input={"pool_id": "p", "worker_id": "w"}))
        while not at_work.done():
            answer = await machine("stale_worker_reaper", jobs, folder=folder).execute(input=asked)
            reaped += answer["reaped_count"]
            await asyncio.wait([at_work], timeout=0.1)
        assert (await at_work)["job_id"] == job_id
        return job_id, reaped, (await jobs.registration.get("w")).status

    job_id, reaped, status = asyncio.run(story())
    job = connect_sync(url).work.pool("p").get(job_id)
    assert (job.status, job.attempts, reaped, status) == (JobStatus.DONE, 1, 0, "terminated")
    assert not [thread for thread in threading.enumerate() if "heart of w" in thread.name]


def test_a_worker_machine_that_breaks_stops_its_heartbeat(tmp_path, monkeypatch):
    async def story():
        jobs = connect(f"sqlite:///{tmp_path}/jobs.db")
        pool = jobs.work.pool("p")
        await pool.push({"n": 1})

        async def broken(*_):
            raise OSError("the disk is full")

        monkeypatch.setattr(type(pool), "complete", broken)
        with pytest.raises(OSError, match="the disk is full"):
            await machine("job_worker", jobs).execute(input={"pool_id": "p", "worker_id": "w"})
        return (await jobs.registration.get("w")).status

    assert asyncio.run(story()) == "active", "the reaper finds it: nobody says any more that it is alive"
    assert not [thread for thread in threading.enumerate() if "heart of w" in thread.name]


def test_the_checker_launches_and_does_not_wait(tmp_path):
    url = f"sqlite:///{tmp_path}/jobs.db"
    launched = []

    class Noted(MachineInvoker):
        async def launch(self, *, target_config, input_data, **_):
            launched.append((target_config["data"]["name"], input_data))

        async def invoke(self, **_):
            raise AssertionError("the checker waits for nobody")

    async def story():
        jobs = connect(url)
        for n in range(5):
            await jobs.work.pool("papers").push({"n": n})
        asked = {"pool_id": "papers", "max_workers": 3}
        checks = [
            await machine("parallelization_checker", jobs, Noted()).execute(input=asked) for _ in range(2)
        ]
        return checks, await jobs.registration.list()

    checks, workers = asyncio.run(story())
    assert checks == [{"spawned": 3}, {"spawned": 0}], "who was launched counts before it has come"
    assert [name for name, _ in launched] == ["job_worker"] * 3
    assert {told["worker_id"] for _, told in launched} == {worker.worker_id for worker in workers}
    assert {told["pool_id"] for _, told in launched} == {"papers"}


def test_the_example_runs_from_a_shell(tmp_path):
    def run(*words, url="sqlite:///jobs.db"):
        command = [sys.executable, str(ROOT / "examples/flatmachines/run.py"), *words, "--url", url]
        done = subprocess.run(
            command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=60, check=True
        )
        return json.loads(done.stdout.splitlines()[-1])

    ids = run("seed", "--count", "2", "--delay", "0.5")
    assert len(ids) == 2
    assert run("check", "--max-workers", "5") == {"spawned": 2}
    pool = connect_sync(f"sqlite:///{tmp_path}/jobs.db").work.pool("papers")
    until(lambda: pool.counts().done == 2, "two processes have done one job each")
    assert len({pool.get(i).claimed_by for i in ids}) == len(list((tmp_path / ".muster/logs").iterdir())) == 2
    assert run("check") == {"spawned": 0}
    assert run("reap")["reaped_count"] == 0
