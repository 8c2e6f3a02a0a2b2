"""The server of a supervisor that was given none: it outlives a killed supervisor, and is found again.

The workers' locks live in it. A successor that started a fresh one would run every worker twice, so the
folder remembers the port, and whoever comes next uses the server that answers there.
"""

from __future__ import annotations

import fcntl
from pathlib import Path

import redis

from local.valkey import EmbeddedValkey, free_port
from worker.cycle_main import connect


class SharedServer:
    """The one embedded server of a folder. Its data is in an append-only file there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._port_file = self.folder / "port"

    def open(self) -> str:
        """The URL of the running server; starts it when none runs. Safe against many at once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "starting").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            port = int(self._port_file.read_text()) if self._port_file.exists() else 0
            if not (port and self._ours(port)):
                # The old port, if it is free: workers that outlived the server look for it there.
                server = _start(self.folder, port)
                port = server.port
                self._port_file.write_text(str(port))
        return _url(port)

    def close(self) -> None:
        """Stop the server. Only for the supervisor that holds the lock, when its workers are gone."""
        with connect(_url(int(self._port_file.read_text())), retries=0) as client:
            client.shutdown(save=False, nosave=False)

    def _ours(self, port: int) -> bool:
        """Does a server answer there, and is it this folder's? The port may belong to another by now."""
        try:
            with connect(_url(port), retries=0) as client:
                return bool(client.config_get("dir")["dir"] == str(self.folder))
        except redis.RedisError:
            return False


def _url(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0"


def _start(folder: Path, port: int) -> EmbeddedValkey:
    if port:
        try:
            return EmbeddedValkey(folder, port, persist=True).start()
        except RuntimeError:
            port = free_port()  # taken by another program since
    return EmbeddedValkey(folder, port, persist=True).start()
