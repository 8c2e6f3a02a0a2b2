"""A control process that dies by SIGKILL at every point of a launch, and the one that comes after it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from muster.launchers.forkserver import ForkServer
from muster.launchers.port import Launch, TaskKind, TaskStatus, TaskView
from muster.launchers.process import ProcessLauncher
from muster.launchers.procfs import born, leaders

USER = Launch(TaskKind.USER, "u1", epoch=7)
POLITE = ("sh", "-c", "trap 'exit 0' TERM; echo ready; sleep 300 & wait")
DEAF = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 300; done")
#: What the same tasks are for a fork server.
FORKED = {POLITE: "tests.polite_task:main", DEAF: "tests.polite_task:deaf"}
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}

#: `dies` says where: "before" the worker is started, "after" it but before its pid is written down,
#: or "later", when the test kills it.
CONTROL = """
import os, signal, sys, time
from pathlib import Path
from muster.launchers.forkserver import ForkServer
from muster.launchers.port import Launch, TaskKind
from muster.launchers.process import ProcessLauncher
from muster.launchers.procfs import spawn

folder, dies, reason, target, *command = sys.argv[1:]

def and_die(spawn):
    def spawn_and_die(*what):
        if dies == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        pid = spawn(*what)
        if dies == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return pid
    return spawn_and_die

fork = ForkServer(target) if target else None
if fork:
    fork.spawn = and_die(fork.spawn)
env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH")}
launcher = ProcessLauncher(Path(folder), command, env, spawn=and_die(spawn), fork=fork)
task_id = launcher.run(Launch(TaskKind.USER, "u1", epoch=7))
log = Path(folder, "logs", task_id + ".log")
if reason:
    while "ready" not in log.read_text():
        time.sleep(0.005)
    launcher.stop(task_id, reason)
print(task_id, flush=True)
signal.pause()
"""


def eventually(true: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.005)


def workers(folder: Path) -> list[int]:
    """Every living task of this folder, found without the launcher."""
    return [pid for pid, _ in leaders({"MUSTER_TASK_FOLDER": str(folder.resolve())})]


@pytest.fixture(params=["exec", "fork"])
def forked(request: pytest.FixtureRequest) -> bool:
    """Both ways of starting a task keep the same promises."""
    return bool(request.param == "fork")


@pytest.fixture
def control_killed(tmp_path: Path, forked: bool) -> Callable[..., str]:
    """Run a control process until it has launched, or died over it; kill it. What it printed."""

    def control_killed(dies: str = "later", reason: str = "", command: tuple[str, ...] = POLITE) -> str:
        target = FORKED[command] if forked else ""
        control = subprocess.Popen(
            [sys.executable, "-c", CONTROL, str(tmp_path), dies, reason, target, *command],
            stdout=subprocess.PIPE,
            env=ENV,
            text=True,
        )
        with control:
            printed = control.stdout.readline().strip()
            control.kill()
        assert control.returncode == -signal.SIGKILL
        return printed

    return control_killed


@pytest.fixture
def exits() -> list[TaskView]:
    return []


@pytest.fixture
def adopt(tmp_path: Path, exits: list[TaskView], forked: bool) -> Iterator[Callable[..., ProcessLauncher]]:
    """Opens the next launcher; no worker of this test outlives it."""
    opened: list[ProcessLauncher] = []

    def adopt(grace: timedelta = timedelta(seconds=60)) -> ProcessLauncher:
        fork = ForkServer(FORKED[POLITE]) if forked else None
        opened.append(ProcessLauncher(tmp_path, POLITE, ENV, grace=grace, on_exit=exits.append, fork=fork))
        return opened[-1]

    yield adopt
    for launcher in opened:
        launcher.close()
    for pid in workers(tmp_path):
        os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # started by a control process, not by this one
            os.waitpid(pid, 0)


Adopt = Callable[..., ProcessLauncher]
Killed = Callable[..., str]


def test_a_worker_outlives_its_control_process_and_is_adopted(
    adopt: Adopt, control_killed: Killed, tmp_path: Path, exits: list[TaskView]
) -> None:
    task_id = control_killed()
    (pid,) = workers(tmp_path)
    launcher = adopt()

    assert list(launcher.tasks()) == [task_id]
    assert launcher.run(USER) == task_id
    assert launcher.pid(task_id) == pid
    assert workers(tmp_path) == [pid]
    view = launcher.describe([task_id])[task_id]
    assert (view.status, view.owner, view.epoch) == (TaskStatus.RUNNING, "u1", 7)
    assert exits == []


def test_an_adopted_worker_can_be_stopped_and_its_exit_is_seen_once(
    adopt: Adopt, control_killed: Killed, tmp_path: Path, exits: list[TaskView]
) -> None:
    task_id = control_killed()
    launcher = adopt()
    launcher.stop(task_id, "the owner asked for none")
    eventually(lambda: exits)
    launcher.close()
    adopt()

    assert workers(tmp_path) == []
    assert [(view.task_id, view.exit_code, view.stopped_reason) for view in exits] == [
        (task_id, None, "the owner asked for none")
    ]


def test_a_crash_before_the_worker_was_started_leaves_its_token_free(
    adopt: Adopt, control_killed: Killed, tmp_path: Path
) -> None:
    assert control_killed(dies="before") == ""
    assert len(list((tmp_path / "tasks").glob("*.json"))) == 1, "the intent was written"
    launcher = adopt()

    assert list(launcher.tasks()) == []
    launcher.run(USER)
    assert len(workers(tmp_path)) == 1


def test_a_crash_before_the_pid_was_written_down_starts_no_second_worker(
    adopt: Adopt, control_killed: Killed, tmp_path: Path, exits: list[TaskView]
) -> None:
    assert control_killed(dies="after") == ""
    (pid,) = workers(tmp_path)
    launcher = adopt()
    task_id = launcher.run(USER)

    assert workers(tmp_path) == [pid]
    assert launcher.pid(task_id) == pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: exits)
    assert exits[0].task_id == task_id


def test_a_worker_that_died_while_nobody_watched_is_reported_to_the_next(
    adopt: Adopt, control_killed: Killed, tmp_path: Path, exits: list[TaskView]
) -> None:
    task_id = control_killed()
    (pid,) = workers(tmp_path)
    os.killpg(pid, signal.SIGKILL)
    eventually(lambda: born(pid) is None)
    launcher = adopt()
    eventually(lambda: exits)

    assert [view.task_id for view in exits] == [task_id]
    assert launcher.describe([task_id])[task_id].status is TaskStatus.STOPPED
    assert list(launcher.tasks()) == []


def test_a_stop_begun_by_a_dead_control_process_is_carried_through(
    adopt: Adopt, control_killed: Killed, tmp_path: Path, exits: list[TaskView]
) -> None:
    task_id = control_killed(reason="the owner asked for none", command=DEAF)
    assert len(workers(tmp_path)) == 1
    adopt(grace=timedelta(milliseconds=50))
    eventually(lambda: exits)

    assert workers(tmp_path) == []
    assert (exits[0].task_id, exits[0].stopped_reason) == (task_id, "the owner asked for none")


def test_fifty_workers_survive_five_control_processes(adopt: Adopt, tmp_path: Path) -> None:
    launches = [Launch(TaskKind.USER, f"u{n}", epoch=1) for n in range(50)]
    ids = []
    for _ in range(5):
        launcher = adopt()
        ids.append([launcher.run(launch) for launch in launches])
        launcher.close()

    assert all(again == ids[0] for again in ids)
    assert len(workers(tmp_path)) == 50
