"""Starts tasks by asking a fork server (`nursery`), and replaces it when it is gone.

A request whose answer is lost may have made a child. Before anything else is done about it, the lock of
the fork server is awaited: whoever holds it knows that every child there will ever be shows its task in
/proc. So a lost answer, a killed fork server and a killed control process all end the same way: look once.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from muster.errors import TryLater
from muster.launchers import nursery
from muster.launchers.procfs import born, leaders, spawn

log = logging.getLogger(__name__)

#: Importing everything, on a busy machine.
_BOOT_S = 30.0
#: One fork, on a busy machine. One that takes longer is hung: it is ended and replaced.
_ANSWER_S = 10.0
#: A fork server whose control process is gone ends by itself; after this long it is ended.
_SETTLE_S = 2.0
#: After a fork server that could not even start: until then tasks are started by exec.
_AGAIN_S = 10.0
#: What the fork server itself is given of the workers' variables: how to find and run the code.
_OWN_VARIABLES = ("HOME", "LANG", "PATH", "PYTHONPATH", "TZ", "VIRTUAL_ENV")


def settle(folder: Path) -> int:
    """Wait until no fork server of this folder can make another child; the lock that says so, held.

    Raises `TryLater` when one cannot be ended.
    """
    handle = os.open(folder / "nursery.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    patience = time.monotonic() + _SETTLE_S
    told_to_end = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            return handle
        if time.monotonic() > patience:
            said = os.pread(handle, 200, 0).decode(errors="replace")
            if told_to_end:
                os.close(handle)
                raise TryLater(f"the fork server of {folder} does not end ({said}); end it, then try again")
            pid, _, birth = said.partition(" ")
            if pid.isdecimal() and birth and born(int(pid)) == birth:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            told_to_end = True
            patience = time.monotonic() + _SETTLE_S
        time.sleep(0.002)


class _Gone(Exception):
    """No answer: whether a child was made is not known."""


class _Unable(Exception):
    """There is no fork server, or it cannot do this; nothing was started."""


class ForkServer:
    """The `spawn` of a process launcher, with the fork server behind it. Not safe for threads: the launcher's
    lock guards it. `target` is what a child runs, `modules` what is imported ahead."""

    def __init__(self, target: str, modules: Sequence[str] = ()) -> None:
        self._words = (sys.executable, "-m", nursery.__name__)
        self._target = (target, *modules)
        self._folder = Path()
        self._env: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._ready = False
        self._not_before = 0.0
        self._doubtful: set[str] = set()  # tasks whose request was lost: a child may have been made

    @property
    def pid(self) -> int | None:
        """The fork server's process, while there is one."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self, folder: Path, env: Mapping[str, str], lock: int) -> None:
        """Start the fork server of `folder`, and do not wait for it. The caller gives its `lock` away."""
        self._folder = folder
        self._env = {name: env[name] for name in _OWN_VARIABLES if name in env}
        self._env[nursery.ROOM] = "-" * nursery.ROOM_BYTES
        self._launch(lock)

    def keep(self) -> None:
        """Start it again if it has ended; its children are not touched by that."""
        if self._process is not None and self._process.poll() is not None and self._ready:
            log.warning("the fork server ended with %s; starting it again", self._process.returncode)
            self._launch(settle(self._folder))

    def spawn(self, argv: Sequence[str], env: Mapping[str, str], log_path: Path, cwd: Path) -> int:
        """As `procfs.spawn`, by a fork; by exec when there is no way to fork."""
        request = {"argv": list(argv), "env": dict(env), "log": str(log_path), "cwd": str(cwd)}
        task = env["MUSTER_TASK_ID"]
        try:
            for _ in range(3):
                if task in self._doubtful and (made := self._look_for(env)):
                    return made
                try:
                    answer = self._ask(request)
                except _Gone:
                    self._doubtful.add(task)
                    continue
                if "pid" in answer:
                    return int(answer["pid"])
                if "refused" in answer:
                    raise _Unable(answer["refused"])
                log.info("the worker's code has changed: a new fork server takes over")
                self._end()
            raise _Unable("three fork servers in a row were lost")
        except _Unable as unable:
            log.warning("started by exec, not by fork: %s", unable)
            return spawn(argv, env, log_path, cwd)

    def _look_for(self, env: Mapping[str, str]) -> int | None:
        """The child that a lost request has made, if it has. `TryLater` leaves the doubt as it is."""
        self._end()
        lock = settle(self._folder)
        tags = {name: env[name] for name in ("MUSTER_TASK_ID", "MUSTER_TASK_FOLDER")}
        made = [pid for pid, _ in leaders(tags)]
        self._doubtful.discard(tags["MUSTER_TASK_ID"])
        self._launch(lock)
        return made[0] if made else None

    def exit_code(self, pid: int) -> int | None:
        """The exit code of an ended child, which is forgotten by that; None when nobody knows it."""
        if self._control is None or not self._ready:
            return None
        try:
            code = self._exchange({"reap": pid}, _ANSWER_S)["code"]
        except _Gone:
            if self.pid is not None:
                self._end()  # a late answer would be taken for that of the next request
            return None
        return None if code is None else int(code)

    def close(self) -> None:
        """End the fork server; the children go on."""
        self._end()

    def _launch(self, lock: int) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with (self._folder / "nursery.log").open("ab") as out:
                self._process = subprocess.Popen(
                    [*self._words, str(theirs.fileno()), str(lock), *self._target],
                    env=self._env,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    pass_fds=(theirs.fileno(), lock),
                    start_new_session=True,
                )
            # For `settle`, should it ever hang.
            os.truncate(lock, 0)
            os.pwrite(lock, f"{self._process.pid} {born(self._process.pid)}".encode(), 0)
        finally:
            theirs.close()
            os.close(lock)
        self._control, self._ready = ours, False

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if time.monotonic() < self._not_before:
            raise _Unable(f"it could not start; see {self._folder / 'nursery.log'}")
        if self._control is None:
            self._launch(settle(self._folder))
        if not self._ready:
            try:
                self._exchange(None, _BOOT_S)
            except _Gone as gone:
                self._end()
                self._not_before = time.monotonic() + _AGAIN_S
                raise _Unable(f"it could not start; see {self._folder / 'nursery.log'}") from gone
            self._ready = True
        return self._exchange(request, _ANSWER_S)

    def _exchange(self, request: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
        assert self._control is not None
        try:
            self._control.settimeout(seconds)
            if request is not None:
                self._control.send(json.dumps(request).encode())
            raw = self._control.recv(nursery.MESSAGE_BYTES)
        except OSError as lost:
            if lost.errno == errno.EMSGSIZE:
                raise _Unable(f"the request is too long ({lost})") from lost
            raise _Gone from lost
        if not raw:
            raise _Gone
        return dict(json.loads(raw))

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control, self._ready = None, False
        if self._process is not None:
            try:
                self._process.wait(_SETTLE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
