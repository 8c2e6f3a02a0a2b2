"""A real `muster up` as a process tree, for the tests of the whole system."""

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

import httpx
import psutil

PATIENCE_S = 60.0


def until(done: Callable[[], Any], what: str, seconds: float = PATIENCE_S) -> Any:
    """Wait for a condition; its value. Fails the test with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := done()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)
    return value


class UpProcess:
    """`muster up` on a folder, with free ports."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self._options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.api: httpx.Client

    def start(self) -> UpProcess:
        words = [sys.executable, "-m", "cli.main", "up", "--dir", str(self.folder), *self._options]
        words += ["--api-port", "0", "--aws-port", "0", "--valkey-port", "0"]
        self.log = self.folder.with_suffix(".log")
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        until(self._is_up, "the engine is up")
        self.endpoints = json.loads((self.folder / "endpoints.json").read_text())
        headers = {"Authorization": f"Bearer {self.endpoints['token']}"}
        self.api = httpx.Client(base_url=self.endpoints["api"], headers=headers, timeout=30)
        return self

    def _is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return (self.folder / "endpoints.json").exists()

    def kill(self) -> None:
        """SIGKILL of the engine alone: nothing is cleaned up."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        (self.folder / "endpoints.json").unlink()

    def stop(self) -> int:
        """SIGTERM, as Ctrl-C does; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=90)

    def end(self) -> None:
        """Whatever the test left, end it."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for process in self.children():
            process.kill()

    def children(self) -> list[psutil.Process]:
        """Every process that belongs to this folder, whoever its parent is by now."""
        own = []
        for process in psutil.process_iter():
            try:
                words = " ".join(process.cmdline()) + process.environ().get("MUSTER_TASK_FOLDER", "")
                words += process.environ().get("STATE_DIR", "")
                if str(self.folder) in words and process.status() != psutil.STATUS_ZOMBIE:
                    own.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return [process for process in own if process.pid != os.getpid()]

    def command(self, user: str, action: str) -> str:
        answer = self.api.post(f"/v1/workers/{user}/{action}")
        assert answer.status_code == 202, answer.text
        return str(answer.json()["command_id"])

    def worker(self, user: str) -> dict[str, Any]:
        answer = self.api.get(f"/v1/workers/{user}")
        return dict(answer.json()) if answer.status_code == 200 else {"phase": "unknown"}

    def ready(self, user: str, above_epoch: int = 0) -> dict[str, Any]:
        def look() -> dict[str, Any] | None:
            seen = self.worker(user)
            return seen if seen["phase"] == "ready" and seen["epoch"] > above_epoch else None

        return dict(until(look, f"{user} is ready above {above_epoch}"))

    def phase(self, user: str, phase: str) -> None:
        until(lambda: self.worker(user)["phase"] == phase, f"{user} is {phase}")
