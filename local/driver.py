"""Drives a `muster up` from outside, as a process tree: for the demonstration, the chaos run and tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from muster.jobs.capacity import HOME_VARIABLE


def until(done: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """Wait for a condition and return its value; `TimeoutError` names what did not happen."""
    deadline = time.monotonic() + seconds
    while not (value := done()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)
    return value


def send_signal(pid: int, number: signal.Signals) -> bool:
    """Signal a process that may have ended; whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class EngineProcess:
    """`muster up` on a folder, with free ports, and a client of its API."""

    def __init__(self, folder: Path, *options: str, env: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._options = options
        self._env = os.environ | (env or {})
        self.process: subprocess.Popen[bytes] | None = None
        self.endpoints: dict[str, Any] = {}
        self.api: Any = None

    def start(self) -> EngineProcess:
        """Start it and wait until everything answers."""
        import httpx

        from api.signing import OperatorAuth

        words = [sys.executable, "-m", "cli.main", "up", "--dir", str(self.folder)]
        words += ["--api-port", "0", "--aws-port", "0", "--valkey-port", "0", *self._options]
        self.log = self.folder.with_suffix(".log")
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                words, env=self._env, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )
        until(self._is_up, "the engine is up")
        self.endpoints = json.loads((self.folder / "endpoints.json").read_text(encoding="utf-8"))
        self.api = httpx.Client(base_url=self.endpoints["api"], auth=OperatorAuth(self.folder), timeout=30)
        return self

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise RuntimeError(f"the engine ended: {self.log.read_text(encoding='utf-8')}")
        return (self.folder / "endpoints.json").exists()

    def kill(self) -> None:
        """SIGKILL of the engine alone: nothing is cleaned up."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        (self.folder / "endpoints.json").unlink(missing_ok=True)

    def stop(self) -> int:
        """SIGTERM, as Ctrl-C does; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=90)

    def end(self) -> None:
        """End whatever is left, the polite way first."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for process in self.processes():
            process.kill()

    def processes(self) -> list[psutil.Process]:
        """Every process that belongs to this folder, whoever its parent is by now."""
        own = []
        for process in psutil.process_iter():
            try:
                environ = process.environ()
                # Valkey rewrites its command line, but it lives in its folder.
                words = " ".join([*process.cmdline(), process.cwd()])
                words += (
                    environ.get("MUSTER_TASK_FOLDER", "")
                    + environ.get(HOME_VARIABLE, "")
                    + environ.get("STATE_DIR", "")
                )
                if str(self.folder) in words and process.status() != psutil.STATUS_ZOMBIE:
                    own.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return [process for process in own if process.pid != os.getpid()]

    def command(self, user: str, action: str, key: str = "") -> str:
        """An accepted command's id. With the key of one that was sent before it is that same command."""
        headers = {"Idempotency-Key": key} if key else {}
        answer = self.api.post(f"/v1/workers/{user}/{action}", headers=headers)
        answer.raise_for_status()
        return str(answer.json()["command_id"])

    def get(self, path: str) -> Any:
        answer = self.api.get(path)
        answer.raise_for_status()
        return answer.json()

    def workers(self) -> list[dict[str, Any]]:
        """All workers, page by page."""
        rows: list[dict[str, Any]] = []
        cursor = ""
        while True:
            page = self.get(f"/v1/workers?limit=200{f'&cursor={cursor}' if cursor else ''}")
            rows += page["workers"]
            cursor = page.get("next_cursor") or ""
            if not cursor:
                return rows

    def worker(self, user: str) -> dict[str, Any]:
        answer = self.api.get(f"/v1/workers/{user}")
        return dict(answer.json()) if answer.status_code == 200 else {"phase": "unknown"}

    def ready(self, user: str, above_epoch: int = 0) -> dict[str, Any]:
        """Wait until the user has a ready worker of a later epoch."""

        def look() -> dict[str, Any] | None:
            seen = self.worker(user)
            return seen if seen["phase"] == "ready" and seen["epoch"] > above_epoch else None

        return dict(until(look, f"{user} is ready above {above_epoch}"))

    def phase(self, user: str, phase: str) -> None:
        until(lambda: self.worker(user)["phase"] == phase, f"{user} is {phase}")
