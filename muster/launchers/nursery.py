"""The fork server: a process that has imported everything a worker needs and forks one child per task.

    python -m muster.launchers.nursery <control fd> <lock fd> <module:function> [module ...]

It imports the modules, packs and freezes its heap (so that a child shares it, not copies it) and answers
requests on the control socket, one JSON message each:

    {"argv", "env", "log", "cwd"} -> {"pid"} a child runs `function` | {"stale"} its code has changed on the
                                     disk: it ends, ask the next one | {"refused": why}
    {"reap": pid}                 -> {"code": n or null}

It has one thread, no secrets and no connections. It ends when the control socket does; the children go on.
A child leads its own session and shows the task's variables in /proc/<pid>/environ, as if it had been
executed: that is how the next launcher finds it. The lock is held by the fork server and by every child
that does not show them yet, so whoever holds it sees all children there will ever be.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from muster.launchers.packing import close_gaps, one_arena

#: A variable of the fork server that only takes up room: a child's own variables are written over it.
ROOM = "MUSTER_NURSERY_ROOM"
ROOM_BYTES = 16 * 1024
MESSAGE_BYTES = 64 * 1024
#: How often the files of the imported modules are looked at.
_LOOK_S = 1.0


class Area:
    """A part of this process's memory that /proc shows: its arguments or its environment."""

    def __init__(self, first: int, shown: str) -> None:
        # Fields 48 to 51 of /proc/self/stat: where the arguments and the environment start and end.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        self._start, end = int(fields[first - 3]), int(fields[first - 2])
        self._size = end - self._start
        if self._size <= 0 or ctypes.string_at(self._start, self._size) != Path(shown).read_bytes():
            raise RuntimeError(f"{shown} cannot be rewritten on this system")

    def show(self, words: list[str]) -> None:
        raw = b"".join(os.fsencode(word) + b"\0" for word in words)
        if len(raw) > self._size:
            raise ValueError(f"{len(raw)} bytes do not fit into {self._size}")
        ctypes.memmove(self._start, raw.ljust(self._size, b"\0"), self._size)


class Nursery:
    """Forks children that run `target` until the control socket ends."""

    def __init__(self, control: socket.socket, lock: int) -> None:
        self._control = control
        self._lock = lock
        self._arguments = Area(48, "/proc/self/cmdline")
        self._environment = Area(50, "/proc/self/environ")
        self._files: dict[str, int] = {}
        self._looked_at = 0.0
        self._filling: list[bytes] = []

    def preload(self, modules: list[str]) -> None:
        """Import ahead. What fails fails again in the worker, which says so in its own log."""
        for name in modules:
            try:
                import_module(name)
            except Exception as failed:  # noqa: BLE001 - a user's module may raise anything
                print(f"fork server: {name} is not preloaded: {failed!r}", file=sys.stderr, flush=True)
        if len(os.listdir("/proc/self/task")) > 1:
            names = [thread.name for thread in threading.enumerate()]
            raise RuntimeError(f"a preloaded module has started threads: {names}")
        if extra := _open_files() - {0, 1, 2, self._control.fileno(), self._lock}:
            raise RuntimeError(f"a preloaded module keeps files open: {sorted(extra)}")
        paths = {str(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())}
        self._files = {path: written for path in paths if (written := _written(path))}
        self._looked_at = time.monotonic()
        gc.collect()
        gc.disable()
        self._filling = close_gaps()
        gc.freeze()

    def serve(self) -> bool:
        """Answer until the end. True in a child, which has its own life from there; False in the parent."""
        while raw := self._control.recv(MESSAGE_BYTES):
            request = json.loads(raw)
            if "reap" in request:
                self._answer({"code": _reap(request["reap"])})
            elif self._is_stale():
                self._answer({"stale": True})
                return False
            elif self._fork(request):
                return True
        return False

    def _answer(self, answer: dict[str, Any]) -> None:
        self._control.send(json.dumps(answer).encode())

    def _is_stale(self) -> bool:
        if time.monotonic() - self._looked_at < _LOOK_S:
            return False
        self._looked_at = time.monotonic()
        return any(_written(path) != written for path, written in self._files.items())

    def _fork(self, request: dict[str, Any]) -> bool:
        """True in the child. The parent answers when the child is a task of its own, or has failed to be."""
        hears, tells = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self._become(request)
            except BaseException as failed:  # noqa: BLE001 - the parent's frames must not run on in a child
                os.write(tells, repr(failed).encode()[:500])
                os._exit(1)
            os.write(tells, b"\0")
            os.close(hears)
            os.close(tells)
            os.close(self._lock)
            return True
        os.close(tells)
        said = os.read(hears, 500)
        os.close(hears)
        if said == b"\0":
            self._answer({"pid": pid})
        else:
            _reap(pid)
            self._answer({"refused": said.decode(errors="replace") or "the child ended at once"})
        return False

    def _become(self, request: dict[str, Any]) -> None:
        """The child: nothing of the parent's session, signals, files or variables is left."""
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        os.close(self._control.detach())
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        for source, standard in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(source, standard, inheritable=True)
        os.close(nothing)
        os.close(log)
        os.chdir(request["cwd"])
        # Cleared first: libc's own table points into the memory that is written over.
        os.environ.clear()
        os.environ.update(request["env"])
        self._environment.show([f"{name}={value}" for name, value in request["env"].items()])
        with suppress(ValueError):  # only what `ps` shows
            self._arguments.show(request["argv"])
        gc.enable()


def _open_files() -> set[int]:
    """Every open file but the listing's own, which is closed again by now."""
    return {number for name in os.listdir("/proc/self/fd") if _is_open(number := int(name))}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _written(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _reap(pid: int) -> int | None:
    try:
        status = os.waitpid(pid, 0)[1]
    except ChildProcessError:
        return None  # a child of an earlier fork server
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def main(argv: list[str]) -> int:
    control, lock, target, *modules = argv
    module, _, function = target.partition(":")
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nursery = Nursery(socket.socket(fileno=int(control)), int(lock))
    one_arena()
    nursery.preload([module, *modules])
    nursery._answer({"ready": os.getpid()})
    if not nursery.serve():
        return 0
    sys.argv[:] = [module]
    code = getattr(import_module(module), function)()
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
