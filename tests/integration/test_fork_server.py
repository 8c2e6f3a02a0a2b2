"""The fork server: what its children are, and what becomes of them when it or its control process dies."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from muster.launchers import forkserver
from muster.launchers.forkserver import ForkServer
from muster.launchers.nursery import ROOM_BYTES
from muster.launchers.port import Launch, TaskKind, TaskStatus, TaskView
from muster.launchers.process import ProcessLauncher
from muster.launchers.procfs import born, leaders

ROOT = Path(__file__).parents[2]
ENV = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "MUSTER_VALKEY_URL": "redis://x"}
#: What is executed when there is no way to fork; it says so.
EXECUTED = ("sh", "-c", "trap 'exit 0' TERM; echo executed; sleep 300 & wait")
POLITE = "tests.polite_task:main"
USER = Launch(TaskKind.USER, "u1", epoch=7)

Open = Callable[..., ProcessLauncher]


def eventually(true: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.005)


def workers(folder: Path) -> list[int]:
    return [pid for pid, _ in leaders({"MUSTER_TASK_FOLDER": str(folder.resolve())})]


def output(folder: Path, task_id: str) -> str:
    return (folder / "logs" / f"{task_id}.log").read_text()


@pytest.fixture
def exits() -> list[TaskView]:
    return []


@pytest.fixture
def open_launcher(tmp_path: Path, exits: list[TaskView]) -> Iterator[Open]:
    opened: list[ProcessLauncher] = []

    def open_launcher(
        target: str = POLITE, modules: tuple[str, ...] = (), fork: ForkServer | None = None, **more: Any
    ) -> ProcessLauncher:
        server = fork or ForkServer(target, modules)
        launcher = ProcessLauncher(
            tmp_path, EXECUTED, ENV | more, grace=timedelta(seconds=20), on_exit=exits.append, fork=server
        )
        opened.append(launcher)
        return launcher

    yield open_launcher
    for launcher in opened:
        launcher.close()
    for pid in workers(tmp_path):
        os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def forked(launcher: ProcessLauncher, folder: Path, launch: Launch = USER) -> int:
    """The pid of a task that has said it is ready."""
    task_id = launcher.run(launch)
    eventually(lambda: "ready" in output(folder, task_id))
    pid = launcher.pid(task_id)
    assert pid is not None
    return pid


def server_of(launcher: ProcessLauncher) -> int:
    pid = launcher._fork.pid
    assert pid is not None
    return pid


def test_a_child_has_nothing_of_the_fork_server_but_its_code(open_launcher: Open, tmp_path: Path) -> None:
    launcher = open_launcher()
    pid = forked(launcher, tmp_path)
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":\t", 1) for line in (proc / "status").read_text().splitlines())

    assert os.getsid(pid) == pid != os.getsid(server_of(launcher))
    assert sorted(os.listdir(proc / "fd")) == ["0", "1", "2"]
    assert os.readlink(proc / "fd/0") == "/dev/null"
    assert (
        os.readlink(proc / "fd/1") == os.readlink(proc / "fd/2") == str(next((tmp_path / "logs").iterdir()))
    )
    assert os.readlink(proc / "cwd") == str(tmp_path)
    assert int(status["SigBlk"], 16) == 0
    assert int(status["SigIgn"], 16) & 1 << (signal.SIGINT - 1) == 0
    assert (proc / "cmdline").read_bytes().rstrip(b"\0").split(b"\0") == [os.fsencode(w) for w in EXECUTED]


def test_a_child_sees_and_shows_the_variables_that_an_executed_task_would_have(
    open_launcher: Open, tmp_path: Path
) -> None:
    launcher = open_launcher("tests.polite_task:environment")
    task_id = launcher.run(USER)
    eventually(lambda: launcher.describe([task_id])[task_id].status is TaskStatus.STOPPED)
    seen = dict(line.split("=", 1) for line in output(tmp_path, task_id).splitlines())
    assert seen == ENV | {
        "MUSTER_KIND": "user",
        "MUSTER_USER": "u1",
        "MUSTER_EPOCH": "7",
        "MUSTER_TASK_ID": task_id,
        "MUSTER_TASK_FOLDER": str(tmp_path),
    }


def test_what_a_child_sees_is_what_proc_shows(open_launcher: Open, tmp_path: Path) -> None:
    pid = forked(open_launcher(), tmp_path)
    (shown,) = (
        environ for leader, environ in leaders({"MUSTER_TASK_FOLDER": str(tmp_path)}) if leader == pid
    )

    assert set(shown) == set(ENV) | {
        f"MUSTER_{w}" for w in ["KIND", "USER", "EPOCH", "TASK_ID", "TASK_FOLDER"]
    }


def test_the_fork_server_holds_no_setting_and_no_thread(open_launcher: Open, tmp_path: Path) -> None:
    launcher = open_launcher(modules=("worker.preload",))
    forked(launcher, tmp_path)
    proc = Path(f"/proc/{server_of(launcher)}")
    names = {
        item.partition(b"=")[0].decode() for item in (proc / "environ").read_bytes().split(b"\0") if item
    }

    assert names == {"PATH", "PYTHONPATH", "MUSTER_NURSERY_ROOM"}
    assert len(os.listdir(proc / "task")) == 1


def test_children_outlive_the_fork_server_and_their_exits_are_seen(
    open_launcher: Open, tmp_path: Path, exits: list[TaskView]
) -> None:
    launcher = open_launcher()
    first = forked(launcher, tmp_path)
    os.kill(server := server_of(launcher), signal.SIGKILL)
    eventually(lambda: born(server) is None)
    launcher.keep()
    second = forked(launcher, tmp_path, Launch(TaskKind.USER, "u2", epoch=7))

    assert server_of(launcher) != server
    assert sorted(workers(tmp_path)) == sorted([first, second])
    os.kill(first, signal.SIGUSR1)
    os.kill(second, signal.SIGUSR1)
    eventually(lambda: len(exits) == 2)
    # The first one's exit code went with its parent.
    assert {(view.owner, view.exit_code) for view in exits} == {("u1", None), ("u2", 7)}


def test_a_launch_finds_a_dead_fork_server_and_replaces_it(open_launcher: Open, tmp_path: Path) -> None:
    launcher = open_launcher()
    forked(launcher, tmp_path)
    os.kill(server_of(launcher), signal.SIGKILL)

    forked(launcher, tmp_path, Launch(TaskKind.USER, "u2", epoch=7))
    assert len(workers(tmp_path)) == 2


class LosesAnswers(ForkServer):
    """Dies after the fork, before the answer, once."""

    lost = 0

    def _exchange(self, request: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
        answer = super()._exchange(request, seconds)
        if "pid" in answer and not self.lost:
            self.lost = answer["pid"]
            assert self._process is not None
            self._process.kill()
            raise forkserver._Gone
        return answer


def test_a_child_whose_answer_was_lost_is_found_and_not_made_twice(
    open_launcher: Open, tmp_path: Path
) -> None:
    server = LosesAnswers(POLITE)
    launcher = open_launcher(fork=server)

    assert forked(launcher, tmp_path) == server.lost
    assert workers(tmp_path) == [server.lost]


CONTROL = """
import os, signal, sys
from pathlib import Path
from muster.launchers.forkserver import ForkServer
from muster.launchers.port import Launch, TaskKind
from muster.launchers.process import ProcessLauncher

class Frozen(ForkServer):
    def _exchange(self, request, seconds):
        if request is not None:
            os.kill(self.pid, signal.SIGSTOP)
            print(self.pid, flush=True)
        return super()._exchange(request, seconds)

env = {name: os.environ[name] for name in ("PATH", "PYTHONPATH")}
launcher = ProcessLauncher(Path(sys.argv[1]), ("false",), env, fork=Frozen("tests.polite_task:main"))
launcher.run(Launch(TaskKind.USER, "u1", epoch=7))
"""


def control_killed_with_a_request_on_its_way(folder: Path) -> int:
    """The fork server, which has not read its request yet, and whose control process is gone."""
    words = [sys.executable, "-c", CONTROL, str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=ENV, text=True) as control:
        server = int(control.stdout.readline())
        # It writes its request and waits for the answer.
        waits = Path(f"/proc/{control.pid}/wchan")
        eventually(lambda: "poll" in waits.read_text() or "recv" in waits.read_text())
        control.kill()
    return server


def test_a_request_that_outlives_its_control_process_makes_no_orphan(
    open_launcher: Open, tmp_path: Path
) -> None:
    server = control_killed_with_a_request_on_its_way(tmp_path)
    os.kill(server, signal.SIGCONT)
    launcher = open_launcher()

    pid = forked(launcher, tmp_path)
    assert workers(tmp_path) == [pid], "made by the old fork server and adopted, or made now: never both"
    assert born(server) is None


def test_a_fork_server_that_hangs_is_ended_by_the_next_launcher(open_launcher: Open, tmp_path: Path) -> None:
    server = control_killed_with_a_request_on_its_way(tmp_path)
    launcher = open_launcher()

    assert born(server) is None
    assert list(launcher.tasks()) == []
    pid = forked(launcher, tmp_path)
    assert workers(tmp_path) == [pid]


def test_a_launcher_that_executes_adopts_what_was_forked(
    open_launcher: Open, tmp_path: Path, exits: list[TaskView]
) -> None:
    launcher = open_launcher()
    pid = forked(launcher, tmp_path)
    task_id = launcher.run(USER)
    launcher.close()
    adopting = ProcessLauncher(tmp_path, EXECUTED, ENV, on_exit=exits.append)
    try:
        assert (adopting.run(USER), adopting.pid(task_id)) == (task_id, pid)
        adopting.stop(task_id, "enough")
        eventually(lambda: exits)
    finally:
        adopting.close()


def test_changed_code_is_run_by_the_next_task(open_launcher: Open, tmp_path: Path) -> None:
    code = tmp_path / "changing.py"
    code.write_text("def main():\n    print('old code', flush=True)\n")
    launcher = open_launcher("changing:main", PYTHONPATH=f"{ROOT}:{tmp_path}")
    first = launcher.run(USER)
    eventually(lambda: output(tmp_path, first) == "old code\n")
    code.write_text("def main():\n    print('new and longer code', flush=True)\n")
    os.utime(code, ns=(1, 1))  # whatever the clock of the file system can tell apart

    attempts = iter(range(1000))

    def runs_new_code() -> bool:  # the files are looked at once a second
        task_id = launcher.run(Launch(TaskKind.USER, "u1", epoch=8, attempt=next(attempts)))
        eventually(lambda: "code" in output(tmp_path, task_id))
        return output(tmp_path, task_id) == "new and longer code\n"

    eventually(runs_new_code)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(300,), daemon=True).start()",
            "threads",
        ),
        ("import os\nkept = open(os.devnull)", "files open"),
    ],
)
def test_a_module_that_cannot_be_forked_from_is_executed_instead(
    open_launcher: Open, tmp_path: Path, source: str, why: str
) -> None:
    (tmp_path / "unfit.py").write_text(source)
    launcher = open_launcher(modules=("unfit",), PYTHONPATH=f"{ROOT}:{tmp_path}")
    task_id = launcher.run(USER)

    eventually(lambda: output(tmp_path, task_id) == "executed\n")
    assert why in (tmp_path / "nursery.log").read_text()


def test_a_module_that_cannot_be_imported_fails_in_the_worker_not_in_the_fork_server(
    open_launcher: Open, tmp_path: Path
) -> None:
    launcher = open_launcher(modules=("no_such_module",))

    forked(launcher, tmp_path)
    assert "no_such_module is not preloaded" in (tmp_path / "nursery.log").read_text()


def test_variables_that_do_not_fit_are_given_by_exec(
    open_launcher: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    launcher = open_launcher(MUSTER_LONG="x" * 2 * ROOM_BYTES)
    with caplog.at_level(logging.WARNING):
        task_id = launcher.run(USER)

    eventually(lambda: output(tmp_path, task_id) == "executed\n")
    assert "do not fit" in caplog.text
