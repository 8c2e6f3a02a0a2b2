"""A host for supervisor tests: a folder with a workers.yml, real supervisors and their workers."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from worker.cycle_lock import Holder, process_start

STRATEGIES = """
import os

def quiet(ctx):
    return {"cycle": ctx.cycle}

def exits(ctx):
    os._exit(3)
"""

PATIENCE = 60.0  # seconds; the machine may be busy with other things


def until(what: str, condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    deadline = time.monotonic() + patience
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {patience:g} s: {what}"
        time.sleep(0.02)
    return value


class Host:
    """A folder with a workers.yml, the supervisors started in it, and the workers they started."""

    def __init__(self, folder: Path, url: str, client: Any, timings: str = "") -> None:
        self.folder, self.client = folder, client
        self.prefix = f"t{random.randrange(10**9)}"
        self.file = folder / "workers.yml"
        self.supervisors: list[subprocess.Popen] = []
        self._command = [sys.executable, "-m", "cli.supervise", str(self.file), "--valkey-url", url]
        self._command += ["--prefix", self.prefix, "--api-port", "0"]
        self._environment = {**os.environ, "MUSTER_TIMINGS": timings}
        (folder / "strategies_of_test.py").write_text(STRATEGIES)

    def write(self, workers: dict[str, dict]) -> None:
        """Replace the file in one move, as an editor or a deploy does."""
        entries = [
            {"key": key, "strategy": "strategies_of_test:quiet", **entry} for key, entry in workers.items()
        ]
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps({"workers": entries}))  # JSON is YAML
        draft.rename(self.file)

    def supervise(self) -> subprocess.Popen:
        log = (self.folder / f"supervisor-{len(self.supervisors)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                self._command, cwd=self.folder, env=self._environment, stdout=log, stderr=log
            )
        self.supervisors.append(process)
        return process

    def log(self, number: int = -1) -> str:
        number = number % len(self.supervisors)
        return (self.folder / f"supervisor-{number}.log").read_text()

    def holder(self, key: str) -> int | None:
        """The pid that holds the lock of a key."""
        value = self.client.get(f"{self.prefix}:worker:{key}:lock")
        return Holder.parse(value).pid if value else None

    def beating(self, *keys: str) -> dict[str, int] | None:
        """The holder of each key, once every one has also sent a heartbeat."""
        assert any(process.poll() is None for process in self.supervisors), self.log()
        names = [f"{self.prefix}:worker:{key}:heartbeat" for key in keys]
        pids = {key: self.holder(key) for key in keys}
        return pids if all(pids.values()) and all(self.client.mget(names)) else None

    def processes(self) -> dict[int, tuple[str, str]]:
        """Every living worker process of this host: pid -> (key, spec)."""
        mine = f"MUSTER_PREFIX={self.prefix}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or process_start(int(entry.name)) is None:
                continue
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mine in environment:
                names = dict(v.decode().split("=", 1) for v in environment if b"=" in v)
                found[int(entry.name)] = (names["WORKER_KEY"], names["WORKER_SPEC"])
        return found

    def ownership(self, key: str) -> list[tuple[float, float, str, str | None]]:
        """The key's journal: (took, held until, holder, how it ended), in order."""
        with sqlite3.connect(self.folder / ".data" / f"{key}.db") as db:
            rows = db.execute("SELECT at, held_until, holder, ended FROM ownership ORDER BY at").fetchall()
        db.close()
        return rows

    def assert_no_lock_was_held_twice(self) -> None:
        for path in (self.folder / ".data").glob("*.db"):
            rows = self.ownership(path.stem)
            for (_, until_, holder, _), (took, _, successor, _) in pairwise(rows):
                assert took >= until_, f"{path.stem}: {successor} took the lock while {holder} held it"

    def stop(self) -> int:
        """SIGTERM the last supervisor; its exit code."""
        self.supervisors[-1].send_signal(signal.SIGTERM)
        return self.supervisors[-1].wait(PATIENCE)

    def clear(self) -> None:
        for process in self.supervisors:
            process.kill()
            process.wait()
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
