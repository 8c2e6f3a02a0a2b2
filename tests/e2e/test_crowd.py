"""Three hundred users at once on one machine; and what the engine costs when a hundred of them idle."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from local.driver import EngineProcess, until
from worker.journal import overlaps

CROWD = 300
IDLE = 100


@pytest.mark.timeout(900)
def test_three_hundred_users_at_once_all_become_ready_and_none_twice(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    journal.mkdir()
    engine = EngineProcess(
        tmp_path / "engine",
        *("--pool", "10", "--session", "worker.journal:JournalSession"),
        env={"MUSTER_SESSION_JOURNAL": str(journal)},
    )
    users = [f"u{number}" for number in range(CROWD)]
    try:
        engine.start()
        with ThreadPoolExecutor(8) as people:
            list(people.map(lambda user: engine.command(user, "start"), users))

        def ready() -> int:
            return sum(row["phase"] == "ready" for row in engine.workers())

        until(lambda: ready() == CROWD, f"all {CROWD} are ready", 300)
        rows = engine.workers()
        assert len({row["pid"] for row in rows}) == CROWD
        assert len({row["task_id"] for row in rows}) == CROWD

        with ThreadPoolExecutor(8) as people:
            list(people.map(lambda user: engine.command(user, "stop"), users[IDLE:]))
        until(lambda: ready() == IDLE, f"{IDLE} are left", 120)
        until(
            lambda: not any(row["phase"] == "draining" for row in engine.workers()), "the others let go", 60
        )
        assert _share_of_a_core(engine, seconds=15) < 0.10
    finally:
        engine.end()
    assert overlaps(journal) == []


def _share_of_a_core(engine: EngineProcess, seconds: float) -> float:
    """CPU time of the engine itself while nothing is asked of it: independent of busy neighbours."""
    assert engine.process is not None
    own = psutil.Process(engine.process.pid)

    def spent() -> float:
        times = own.cpu_times()
        return float(times.user + times.system)

    before, began = spent(), time.monotonic()
    until(lambda: time.monotonic() - began > seconds, "the measuring time is over", seconds + 10)
    return (spent() - before) / (time.monotonic() - began)
