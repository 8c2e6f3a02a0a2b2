"""The real worker process: signals, exit codes, and a freeze longer than its mark.

Real timings would take minutes, so the process is started by a few lines that divide the durations of the
blueprint by ten before any other module reads them; the exact 25 s and 30 s are shown on a fake clock.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from local.valkey import EmbeddedValkey
from muster import keys, steps
from muster.lifecycle import Outcome
from muster.model import Phase, Want
from muster.store import Store
from tests.worlds import World, command, world
from worker.exits import Exit
from worker.session import Context, SessionRefused

ROOT = Path(__file__).parents[2]
TEN_TIMES_FASTER = """
import sys
import muster.blueprint as b
for name in ("MARK_TTL", "MARK_BEAT", "STOP_ACTING_AFTER", "EXIT_AFTER", "HELD_PATIENCE"):
    setattr(b, name, getattr(b, name) / 10)
from worker.boot import main
sys.exit(main())
"""
ME = "tests.integration.test_worker_process"


class Acting:
    """Does something for its user five times a second, whenever its lease allows."""

    def open(self, ctx: Context) -> None:
        self.client = redis.Redis.from_url(os.environ["MUSTER_VALKEY_URL"])

    def run(self, ctx: Context) -> None:
        while not ctx.stopping.wait(0.2):
            if ctx.lease.may_act():
                self.client.rpush(f"acts:{ctx.given.user}", os.getpid())

    def close(self, ctx: Context) -> None:
        self.client.close()


class Crashing(Acting):
    def run(self, ctx: Context) -> None:
        raise ZeroDivisionError("a bug of the user's")


class BadKeys(Acting):
    def open(self, ctx: Context) -> None:
        super().open(ctx)
        raise SessionRefused("the broker does not know these keys")


class Stage:
    """Starts worker processes on a real server and never leaves one behind."""

    def __init__(self, server: EmbeddedValkey, w: World) -> None:
        self.server, self.w = server, w
        self.processes: list[subprocess.Popen[str]] = []

    def worker(self, session: str = "Acting", **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", TEN_TIMES_FASTER],
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "MUSTER_VALKEY_URL": self.server.url,
                "MUSTER_CLAIM_CHANNEL": "valkey",
                "MUSTER_VERSION": "v1",
                "MUSTER_SESSION": f"{ME}:{session}",
                **env,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        return process

    def cold(self, session: str = "Acting", action: str = "start") -> subprocess.Popen[str]:
        assert self.w.apply(command(action)) == [Outcome.LAUNCHED]
        launch = list(self.w.launcher.living().values())[-1]
        env = dict(launch.env) | {"MUSTER_USER": "u1", "MUSTER_EPOCH": str(launch.epoch)}
        return self.worker(session, **env, MUSTER_TASK_ID=self.w.user().task_id)

    def acts(self) -> list[int]:
        return [int(pid) for pid in self.server_client.lrange("acts:u1", 0, -1)]

    @property
    def server_client(self) -> Any:
        return self.w.store.client

    def until(self, condition: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, what
            time.sleep(0.005)


@pytest.fixture
def stage(valkey_server: EmbeddedValkey, valkey: Any) -> Iterator[Stage]:
    stage = Stage(valkey_server, world(Store(valkey)))
    yield stage
    for process in stage.processes:
        process.kill()
        process.communicate(timeout=10)


def ended(process: subprocess.Popen[str], patience: float = 15) -> tuple[int, str]:
    output, _ = process.communicate(timeout=patience)
    return process.returncode, output


def test_a_frozen_worker_that_wakes_up_does_nothing_and_exits_and_its_successor_is_live(stage: Stage) -> None:
    frozen = stage.cold()
    stage.until(lambda: len(stage.acts()) >= 2, "the first worker did not act")
    seen = len(stage.acts())
    stage.until(lambda: len(stage.acts()) > seen, "no third act")
    frozen.send_signal(
        signal.SIGSTOP
    )  # 200 ms before its next act, so never between the question and the deed
    frozen_at = time.monotonic()
    before = stage.acts().count(frozen.pid)

    successor = stage.cold(action="restart")
    stage.until(lambda: successor.pid in stage.acts(), "the successor did not take over")
    assert time.monotonic() - frozen_at > 1.5  # it waited for the mark to run out
    stage.until(lambda: time.monotonic() - frozen_at > 4, "40 s, ten times faster")
    frozen.send_signal(signal.SIGCONT)
    code, output = ended(frozen)
    assert code == Exit.LEASE_LOST, output
    assert stage.acts().count(frozen.pid) == before
    at = len(stage.acts())
    stage.until(lambda: len(stage.acts()) > at, "the successor stopped acting")
    mark = stage.w.user().live_mark
    assert mark is not None
    assert stage.w.user().published["pid"] == successor.pid


def test_a_worker_drains_on_sigterm_and_lets_go_of_its_mark(stage: Stage) -> None:
    worker = stage.cold()
    stage.until(lambda: stage.w.user().phase is Phase.READY, "not ready")
    worker.send_signal(signal.SIGTERM)
    code, output = ended(worker)
    assert code == Exit.DONE, output
    view = stage.w.user()
    assert (view.mark, view.reason) == (None, "drained")
    latency = [json.loads(line) for line in output.splitlines() if '"StartLatency"' in line]
    assert [line["via"] for line in latency] == ["cold"]


def test_a_pool_worker_takes_a_claim_serves_and_ends_when_its_user_is_stopped(stage: Stage) -> None:
    worker = stage.worker()
    idle = keys.pool_idle("default")
    stage.until(lambda: stage.server_client.zcard(idle) == 1, "it did not join the pool")
    assert stage.w.apply(command("start")) == [Outcome.CLAIMED]
    stage.until(lambda: worker.pid in stage.acts(), "it does not serve")
    assert stage.server_client.zcard(idle) == 0
    assert stage.w.apply(command("stop")) == [Outcome.STOPPED]
    code, output = ended(worker)
    assert code in (Exit.DONE, Exit.FENCED), output
    assert stage.w.user().phase is Phase.STOPPED


def test_an_idle_pool_worker_leaves_at_once_on_sigterm(stage: Stage) -> None:
    worker = stage.worker()
    stage.until(lambda: stage.server_client.zcard(keys.pool_idle("default")) == 1, "it did not join the pool")
    stage.until(
        lambda: any(c["cmd"] == "blpop" for c in stage.server_client.client_list()), "it does not wait"
    )
    asked_at = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    assert ended(worker)[0] == Exit.DONE
    assert time.monotonic() - asked_at < 5  # its blocking wait would have lasted 10 s
    assert stage.server_client.zcard(keys.pool_idle("default")) == 0


def test_the_control_channel_restarts_a_worker_as_no_failure(stage: Stage) -> None:
    worker = stage.cold()
    stage.until(lambda: stage.w.user().phase is Phase.READY, "not ready")
    stage.until(lambda: stage.server_client.pubsub_numsub(keys.CONTROL)[0][1] >= 1, "it does not listen")
    stage.server_client.publish(keys.CONTROL, json.dumps({"action": "RESTART", "user_id": "u1"}))
    assert ended(worker)[0] == Exit.DONE
    assert stage.server_client.exists(keys.restarting("u1"))


def test_a_start_overtaken_before_it_began_exits_as_stale(stage: Stage) -> None:
    assert stage.w.apply(command("start"), command("stop")) == [Outcome.LAUNCHED, Outcome.STOPPED]
    assert ended(stage.worker(MUSTER_USER="u1", MUSTER_EPOCH="1"))[0] == Exit.STALE


def test_a_session_that_crashes_is_a_failure_with_its_reason(stage: Stage) -> None:
    code, output = ended(stage.cold("Crashing"))
    assert code == Exit.SESSION_FAILED
    assert "a bug of the user's" in output
    assert "ZeroDivisionError" in stage.w.user().reason
    assert stage.w.user().want is Want.RUNNING


def test_a_session_that_can_never_work_ends_the_retries(stage: Stage) -> None:
    assert ended(stage.cold("BadKeys"))[0] == Exit.REFUSED
    view = stage.w.user()
    assert (view.want, view.reason) == (Want.FAILED, "the broker does not know these keys")
    assert stage.w.store.one(steps.read_user("u1")).mark is None


@pytest.mark.parametrize(
    "env",
    [
        {"MUSTER_CLAIM_CHANNEL": "pigeon"},
        {"MUSTER_USER": "u1"},
        {"MUSTER_USER": "u1", "MUSTER_EPOCH": "x"},
        {"MUSTER_SESSION": "nonsense"},
    ],
)
def test_a_wrong_setting_is_a_usage_error(stage: Stage, env: dict[str, str]) -> None:
    code, output = ended(stage.worker(**env))
    assert code == Exit.USAGE
    assert "docs/reference/settings.md" in output
