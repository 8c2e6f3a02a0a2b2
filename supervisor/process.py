"""A worker's process, ours or adopted: both are held by a pidfd, so no signal can hit a reused pid."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from supervisor.config import Spec
from worker.cycle_lock import Holder, process_start
from worker.cycle_main import SPEC


class Process(Protocol):
    """What the supervisor needs of a process."""

    pid: int
    #: The spec text it was started with, to see whether the file changed since.
    spec_text: str

    def fileno(self) -> int:
        """Readable once the process has exited."""
        ...

    def exit(self) -> str | None:
        """How it ended, in words; None while it lives. Safe to ask again."""
        ...

    def send(self, number: signal.Signals) -> None:
        """Signal it; nothing happens when it is already gone."""
        ...


class Launcher(Protocol):
    """Where processes come from."""

    def spawn(self, spec: Spec) -> Process:
        """Start a process for the spec."""
        ...

    def adopt(self, lock_value: str) -> Process | None:
        """The living process of this machine that a lock's value names, if there is one."""
        ...


class LocalProcess:
    """A process of this machine, by pidfd. `child` is set for one we started and must reap."""

    def __init__(self, pid: int, spec_text: str, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self.spec_text = spec_text
        self._child = child
        self._fd = os.pidfd_open(pid)
        self._exit: str | None = None

    def fileno(self) -> int:
        return self._fd

    def exit(self) -> str | None:
        if self._exit is None:
            poll = select.poll()
            poll.register(self._fd, select.POLLIN)
            if poll.poll(0):
                self._exit = self._reap()
                os.close(self._fd)
        return self._exit

    def _reap(self) -> str:
        if self._child is None:
            return "exited (adopted: its exit code went to another parent)"
        code = self._child.wait()
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def send(self, number: signal.Signals) -> None:
        if self._exit is None:
            try:
                signal.pidfd_send_signal(self._fd, number)
            except ProcessLookupError:
                return  # it exited before we looked; `exit` says so


class LocalLauncher:
    """Starts `python -m worker.cycle_main <key>`: its output is ours, its session is its own.

    An own session keeps a Ctrl-C in the supervisor's terminal from the workers: they are asked to leave
    in order, and they outlive a supervisor that is killed.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    def spawn(self, spec: Spec) -> Process:
        child = subprocess.Popen(
            [sys.executable, "-m", "worker.cycle_main", spec.key],
            env={**self._environment, "WORKER_KEY": spec.key, SPEC: spec.text()},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        return LocalProcess(child.pid, spec.text(), child)

    def adopt(self, lock_value: str) -> Process | None:
        holder = Holder.parse(lock_value)
        if holder is None or not holder.here or holder.dead:
            return None
        try:
            process = LocalProcess(holder.pid, _spec_of(holder.pid))
        except ProcessLookupError:
            return None
        # The pidfd is open now: if the start time still matches, it is a handle on the holder itself.
        return process if process_start(holder.pid) == holder.started else None


def _spec_of(pid: int) -> str:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except (FileNotFoundError, PermissionError):
        return ""  # equal to no spec: it will be replaced
    prefix = f"{SPEC}=".encode()
    return next((v[len(prefix) :].decode() for v in environment.split(b"\0") if v.startswith(prefix)), "")
