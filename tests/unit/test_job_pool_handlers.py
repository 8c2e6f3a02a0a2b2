"""pool_manager and maintenance_worker on job pools, through their handlers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lambdas import wiring
from lambdas.maintenance_worker.handler import handler as maintenance_worker
from lambdas.pool_manager.handler import handler as pool_manager
from muster.errors import BadCommand
from muster.jobs import Jobs, NewJob, WorkerRegistration, WorkerStatus, connect
from muster.jobs.model import STALE_AFTER
from muster.settings import Settings


class Context:
    aws_request_id = "run-1"


class Parts:
    """Wired handlers on a memory backend whose clock can be moved."""

    def __init__(self, clock: Any) -> None:
        self.jobs: Jobs = connect("memory://", clock)
        self.launched: list[tuple[str, str | None]] = []
        self.woken: list[str] = []

    def wire(self, monkeypatch: pytest.MonkeyPatch) -> None:
        job_wiring = wiring.JobWiring(
            self.jobs,
            lambda pool, _worker, pin: self.launched.append((pool, pin)),
            self.woken.append,
            lambda: None,
        )
        nothing: Any = None
        parts = wiring.Wiring(Settings(), nothing, nothing, nothing, nothing, nothing, job_wiring)
        monkeypatch.setattr(wiring, "_wiring", parts)


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    from muster.clock import SystemClock

    made = Parts(SystemClock())
    made.wire(monkeypatch)
    return made


def test_pool_manager_with_a_pool_id_launches_what_the_jobs_need_with_the_pools_pin(parts: Parts) -> None:
    pool = parts.jobs.work.pool("backtests")
    pool.push_many([NewJob({}) for _ in range(3)])
    assert pool_manager({"pool_id": "backtests"}, Context())["launched"] == 3
    assert [name for name, _ in parts.launched] == ["backtests"] * 3
    assert pool_manager({"pool_id": "backtests"}, Context())["launched"] == 0  # they are starting


def test_maintenance_worker_reaps_asks_for_workers_and_counts(
    parts: Parts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = parts.jobs.work.pool("backtests")
    pool.push_many([NewJob({}), NewJob({})])
    parts.jobs.registration.register(WorkerRegistration("w1", pool="backtests"))
    assert pool.claim("w1") is not None

    class Later:
        def now(self) -> float:
            import time

            return time.time() + STALE_AFTER.total_seconds() + 1

    monkeypatch.setattr("lambdas.job_pools.SystemClock", Later)
    assert maintenance_worker({"source": "muster.jobs"}, Context()) == {"released": 1}
    worker = parts.jobs.registration.get("w1")
    assert worker is not None
    assert worker.status is WorkerStatus.LOST
    assert parts.woken == ["backtests"]
    emitted = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "_aws" in line]
    assert emitted[0]["JobsQueued"] == [2.0]
    assert emitted[0]["JobsPoisoned"] == [0.0]


def test_without_job_pools_the_events_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Any = None
    bare = wiring.Wiring(Settings(), nothing, nothing, nothing, nothing, nothing)
    monkeypatch.setattr(wiring, "_wiring", bare)
    with pytest.raises(BadCommand, match="no job pools"):
        pool_manager({"pool_id": "x"}, Context())
    with pytest.raises(BadCommand, match="no job pools"):
        maintenance_worker({"source": "muster.jobs"}, Context())
