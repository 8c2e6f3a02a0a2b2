"""A paper broker in a process of its own: started on a free port, stopped with us."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT_S = 10.0


class PaperBroker:
    """One server process on loopback. Its book is a file in `folder`, so it survives `kill` and `start`.

    Every key gets an account on its first use, unless `accounts` maps key ids to secrets.
    """

    def __init__(
        self,
        folder: Path,
        port: int = 0,
        *,
        seed: int = 1,
        accounts: dict[str, str] | None = None,
        faults: dict[str, Any] | None = None,
    ) -> None:
        self._folder = folder
        self._accounts = accounts
        self._settings = {"port": port, "seed": seed, "book": str(folder / "book.sqlite")}
        self._settings |= {"faults": faults or {}, "open_accounts": accounts is None}
        self.url = ""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> PaperBroker:
        """Start it and wait until it listens. A second start keeps the port of the first."""
        self._folder.mkdir(parents=True, exist_ok=True)
        if self._accounts is not None:
            file = self._folder / "accounts.json"
            file.touch(mode=0o600)
            file.write_text(json.dumps(self._accounts))
            self._settings["accounts"] = str(file)
        with (self._folder / "paper.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "local.paper", json.dumps(self._settings)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert self.process.stdout is not None
        with self.process.stdout as said:
            line = said.readline()  # or the end of the file, if it could not start
        if not line:
            self.process.wait(WAIT_S)
            raise RuntimeError(f"the paper broker did not start; see {self._folder / 'paper.log'}")
        self.url = str(json.loads(line)["url"])
        self._settings["port"] = int(self.url.rpartition(":")[2])
        return self

    def stop(self) -> None:
        """SIGTERM: says goodbye to its clients, then ends."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(WAIT_S)
            self.process = None

    def kill(self) -> None:
        """SIGKILL, as a power cut would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT_S)
            self.process = None

    def orders(self) -> list[dict[str, Any]]:
        """The broker's own book: every order, with `attempts` to place it and number of `fills`."""
        return list(self._ask("GET", "/audit/orders"))

    def sessions(self) -> list[dict[str, Any]]:
        """Every stream there ever was, with its times; see `local.paper.audit.overlaps`."""
        return list(self._ask("GET", "/audit/sessions"))

    def faults(self, **knobs: Any) -> None:
        """Turn these knobs of `local.paper.faults.Faults`; the others stay."""
        self._ask("PATCH", "/admin/faults", knobs)

    def drop_streams(self, key_id: str | None = None) -> int:
        """Cut the streams of one key, or all, without a word. Returns how many."""
        which = "" if key_id is None else f"?key_id={key_id}"
        return int(self._ask("POST", f"/admin/drop-streams{which}")["dropped"])

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, content, method=method)  # noqa: S310 - our own http url
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310
            return json.load(answer)


@contextmanager
def paper_broker(folder: Path, **kwargs: Any) -> Iterator[PaperBroker]:
    """A server for the length of a `with` block."""
    server = PaperBroker(folder, **kwargs).start()
    try:
        yield server
    finally:
        server.kill()
