"""The process launcher on real processes: environment, signals, exits, records."""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from muster.clock import FakeClock
from muster.errors import Refused, TryLater
from muster.launchers.port import Launch, TaskDied, TaskKind, TaskStatus, TaskView
from muster.launchers.process import ProcessLauncher, passed_on
from muster.launchers.procfs import born, leaders, spawn
from muster.launchers.records import Records

USER = Launch(TaskKind.USER, "u1", epoch=7)
POLITE = "trap 'exit 0' TERM; echo ready; sleep 300 & wait"
DEAF = "trap '' TERM; echo ready; while :; do sleep 300; done"

Open = Callable[..., ProcessLauncher]


def eventually(true: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.005)


@pytest.fixture
def exits() -> list[TaskView]:
    return []


@pytest.fixture
def open_launcher(tmp_path: Path, exits: list[TaskView]) -> Iterator[Open]:
    """Opens launchers on one folder; whatever they started is dead afterwards."""
    opened: list[ProcessLauncher] = []

    def open_launcher(script: str = POLITE, **options: Any) -> ProcessLauncher:
        settings = {
            "command": ("sh", "-c", script),
            "env": {"PATH": os.environ["PATH"]},
            "grace": timedelta(seconds=60),
            "on_exit": exits.append,
        }
        launcher = ProcessLauncher(tmp_path, **(settings | options))
        opened.append(launcher)
        return launcher

    yield open_launcher
    for launcher in opened:
        launcher.close()
    for pid, _ in leaders({"MUSTER_TASK_FOLDER": str(tmp_path)}):
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def output(folder: Path, task_id: str) -> str:
    return (folder / "logs" / f"{task_id}.log").read_text()


def ready(launcher: ProcessLauncher, folder: Path, launch: Launch = USER) -> str:
    """Run a script and wait until it says that its traps are set."""
    task_id = launcher.run(launch)
    eventually(lambda: "ready" in output(folder, task_id))
    return task_id


def test_a_worker_sees_its_identity_and_nothing_that_is_not_on_the_list(
    open_launcher: Open, tmp_path: Path
) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "MUSTER_VALKEY_URL": "redis://x",
        "AWS_SECRET_ACCESS_KEY": "real",
        "DATABASE_PASSWORD": "secret",
    }
    launcher = open_launcher("env; echo ready", env=env)
    task_id = ready(launcher, tmp_path, Launch(TaskKind.USER, "u1", epoch=7, env={"MUSTER_USER": "not-this"}))
    seen = dict(line.split("=", 1) for line in output(tmp_path, task_id).splitlines() if "=" in line)

    assert {name: seen[name] for name in seen if name.startswith(("MUSTER", "AWS", "DATABASE"))} == {
        "MUSTER_KIND": "user",
        "MUSTER_USER": "u1",
        "MUSTER_EPOCH": "7",
        "MUSTER_TASK_ID": task_id,
        "MUSTER_TASK_FOLDER": str(tmp_path),
        "MUSTER_VALKEY_URL": "redis://x",
    }


def test_aws_keys_are_passed_on_only_to_a_local_endpoint() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    local = {"AWS_ENDPOINT_URL": "http://127.0.0.1:4566", "AWS_REGION": "eu-west-1"}

    assert passed_on(keys) == {}
    assert passed_on(keys | local) == local | {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s"}


def test_a_task_leads_its_own_session(open_launcher: Open) -> None:
    launcher = open_launcher()
    pid = launcher.pid(launcher.run(USER))

    assert os.getsid(pid) == pid != os.getsid(0)


def test_an_exit_is_reported_once_with_its_code(open_launcher: Open, exits: list[TaskView]) -> None:
    launcher = open_launcher("exit 3")
    task_id = launcher.run(USER)
    eventually(lambda: exits)
    launcher.close()

    assert [(view.task_id, view.status, view.exit_code) for view in exits] == [
        (task_id, TaskStatus.STOPPED, 3)
    ]
    with pytest.raises(TaskDied):
        open_launcher().run(USER)
    assert len(exits) == 1


def test_a_death_by_signal_is_128_plus_its_number(
    open_launcher: Open, exits: list[TaskView], tmp_path: Path
) -> None:
    launcher = open_launcher()
    os.kill(launcher.pid(ready(launcher, tmp_path)), signal.SIGKILL)
    eventually(lambda: exits)

    assert exits[0].exit_code == 137


def test_a_failing_callback_does_not_blind_the_watcher(open_launcher: Open, exits: list[TaskView]) -> None:
    def fails_once(view: TaskView) -> None:
        exits.append(view)
        if len(exits) == 1:
            raise RuntimeError("callback")

    launcher = open_launcher("exit 0", on_exit=fails_once)
    launcher.run(USER)
    eventually(lambda: len(exits) == 1)
    launcher.run(Launch(TaskKind.USER, "u2"))
    eventually(lambda: len(exits) == 2)


def test_a_task_that_hears_sigterm_ends_by_itself(
    open_launcher: Open, exits: list[TaskView], tmp_path: Path
) -> None:
    launcher = open_launcher()
    launcher.stop(ready(launcher, tmp_path), "the owner asked for none")
    eventually(lambda: exits)

    assert (exits[0].exit_code, exits[0].stopped_reason) == (0, "the owner asked for none")


def test_stop_does_not_wait_for_a_deaf_task_which_is_killed_after_the_grace(
    open_launcher: Open, exits: list[TaskView], tmp_path: Path
) -> None:
    clock = FakeClock()
    launcher = open_launcher(DEAF, grace=timedelta(seconds=30), clock=clock)
    task_id = ready(launcher, tmp_path)
    launcher.stop(task_id, "first")
    assert launcher.describe([task_id])[task_id].status is TaskStatus.RUNNING

    # The watcher looks at the clock again whenever something happens to another task.
    clock.advance(29)
    inside = ready(launcher, tmp_path, Launch(TaskKind.USER, "u2"))
    os.kill(launcher.pid(inside), signal.SIGKILL)
    eventually(lambda: exits)
    assert launcher.describe([task_id])[task_id].status is TaskStatus.RUNNING
    clock.advance(1)
    after = ready(launcher, tmp_path, Launch(TaskKind.USER, "u3"))
    os.kill(launcher.pid(after), signal.SIGKILL)
    eventually(lambda: len(exits) == 3)

    assert exits[0].task_id == inside
    assert {view.task_id: view.exit_code for view in exits}[task_id] == 137


def test_a_frozen_task_is_killed_after_the_grace(
    open_launcher: Open, exits: list[TaskView], tmp_path: Path
) -> None:
    launcher = open_launcher(grace=timedelta(milliseconds=50))
    task_id = ready(launcher, tmp_path)
    os.kill(launcher.pid(task_id), signal.SIGSTOP)
    launcher.stop(task_id, "frozen")
    eventually(lambda: exits)

    assert exits[0].exit_code == 137


def test_what_a_task_started_ends_with_it(open_launcher: Open, exits: list[TaskView], tmp_path: Path) -> None:
    launcher = open_launcher("sleep 300 & echo $! ready; exit 0")
    child = int(output(tmp_path, ready(launcher, tmp_path)).split()[0])
    eventually(lambda: exits)

    eventually(lambda: born(child) is None)


def test_a_command_that_is_not_there_is_refused_and_leaves_nothing(
    open_launcher: Open, tmp_path: Path
) -> None:
    launcher = open_launcher(command=("no-such-program",))
    with pytest.raises(Refused, match="check the worker command"):
        launcher.run(USER)

    assert list(launcher.tasks()) == []
    assert list((tmp_path / "tasks").iterdir()) == []


def test_a_machine_without_room_is_tried_later_and_the_token_stays_free(open_launcher: Open) -> None:
    failures = [OSError(errno.EAGAIN, "no more processes"), OSError(errno.ENOMEM, "no memory")]

    def crowded(*args: Any) -> int:
        if failures:
            raise failures.pop()
        return spawn(*args)

    launcher = open_launcher(spawn=crowded)
    for _ in range(2):
        with pytest.raises(TryLater, match="no m"):
            launcher.run(USER)

    task_id = launcher.run(USER)
    assert list(launcher.tasks()) == [task_id]


def test_a_task_that_cannot_be_watched_is_not_left_behind(
    open_launcher: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pids: list[int] = []

    def remembered(*args: Any) -> int:
        pids.append(spawn(*args))
        return pids[-1]

    def no_more_handles(pid: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    launcher = open_launcher(spawn=remembered)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pidfd_open", no_more_handles)
        with pytest.raises(TryLater, match="too many open files"):
            launcher.run(USER)

    assert born(pids[0]) is None
    assert list((tmp_path / "tasks").iterdir()) == []


def test_a_full_disk_keeps_tasks_from_starting_but_not_from_ending(
    open_launcher: Open, exits: list[TaskView], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = open_launcher()
    task_id = ready(launcher, tmp_path)

    def full(self: Records, record: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Records, "write", full)
    with pytest.raises(TryLater, match="no space"):
        launcher.run(Launch(TaskKind.USER, "u2"))
    launcher.stop(task_id, "the owner asked for none")
    eventually(lambda: exits)

    assert exits[0].task_id == task_id


def test_a_finished_task_is_remembered_for_an_hour(
    open_launcher: Open, exits: list[TaskView], tmp_path: Path
) -> None:
    clock = FakeClock()
    launcher = open_launcher("exit 0", clock=clock)
    task_id = launcher.run(USER)
    eventually(lambda: exits)

    clock.advance(3599)
    assert launcher.describe([task_id])[task_id].status is TaskStatus.STOPPED
    clock.advance(1)
    assert launcher.describe([task_id])[task_id].status is TaskStatus.MISSING
    assert list((tmp_path / "tasks").iterdir()) == []


def test_a_process_that_only_has_the_pid_of_a_task_is_left_alone(
    open_launcher: Open, exits: list[TaskView], tmp_path: Path
) -> None:
    first = open_launcher()
    task_id = ready(first, tmp_path)
    pid = first.pid(task_id)
    first.close()
    record = tmp_path / "tasks" / f"{task_id}.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"born": "another-boot/1"}))
    second = open_launcher()
    eventually(lambda: exits)
    second.stop(task_id, "it is not ours")

    assert second.describe([task_id])[task_id].status is TaskStatus.STOPPED
    assert born(pid) is not None


def test_a_task_is_found_also_in_the_instant_when_its_environment_still_reads_empty(
    open_launcher: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = open_launcher()
    pid = launcher.pid(launcher.run(USER))
    environ = Path(f"/proc/{pid}/environ")
    read_bytes = Path.read_bytes
    early = [b"", b""]  # what the kernel shows right after exec

    def read_early(path: Path) -> bytes:
        return early.pop() if path == environ and early else read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", read_early)

    assert [pid for pid, _ in leaders({"MUSTER_TASK_FOLDER": str(tmp_path)})] == [pid]


def test_a_record_that_cannot_be_read_does_not_keep_the_launcher_from_starting(
    open_launcher: Open, tmp_path: Path
) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "p-broken.json").write_text("")

    assert list(open_launcher().tasks()) == []
    assert list((tmp_path / "tasks").iterdir()) == []


def test_a_folder_has_one_launcher_at_a_time(open_launcher: Open) -> None:
    first = open_launcher()
    with pytest.raises(Refused, match="another launcher owns"):
        open_launcher()
    first.close()

    assert list(open_launcher().tasks()) == []


def test_a_closed_launcher_takes_no_orders(open_launcher: Open) -> None:
    launcher = open_launcher()
    launcher.close()
    with pytest.raises(TryLater):
        launcher.run(USER)
    with pytest.raises(TryLater):
        launcher.stop("p-1", "why")


def test_a_system_without_pidfd_is_refused_with_the_reason(
    open_launcher: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "pidfd_open")

    with pytest.raises(Refused, match=r"Linux 5\.3"):
        open_launcher()
