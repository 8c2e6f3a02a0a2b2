"""A session that leaves a trace of every act, so that an auditor can see from outside who acted when.

The chaos run uses it: two workers that acted for one user at the same time show up as interleaved lines,
whatever Valkey says.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from worker.broker import BrokerSession
from worker.session import Context

_ACT_EVERY_S = 0.2


class JournalSession:
    """Acts five times a second while its lease allows: one line `<boot time> <pid> <epoch>` per act."""

    def __init__(self) -> None:
        self._folder = Path(os.environ["MUSTER_SESSION_JOURNAL"])
        self._file = -1

    def open(self, ctx: Context) -> None:
        ctx.lease.require()
        path = self._folder / f"{ctx.given.user}.log"
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def run(self, ctx: Context) -> None:
        while not ctx.stopping.wait(_ACT_EVERY_S):
            if ctx.lease.may_act():
                self._act(ctx)

    def _act(self, ctx: Context) -> None:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.write(self._file, f"{now:.6f} {os.getpid()} {ctx.given.epoch}\n".encode())

    def close(self, ctx: Context) -> None:  # noqa: ARG002 - the protocol's shape
        if self._file >= 0:
            os.close(self._file)


class TradingJournal(BrokerSession):
    """A broker session that leaves the same trace, from the moment it may act to its end."""

    def __init__(self) -> None:
        super().__init__()
        self._journal = JournalSession()
        self._writer: threading.Thread | None = None

    def open(self, ctx: Context) -> None:
        self._journal.open(ctx)
        self._writer = threading.Thread(target=self._journal.run, args=(ctx,), name="journal", daemon=True)
        self._writer.start()
        super().open(ctx)

    def close(self, ctx: Context) -> None:
        super().close(ctx)
        if self._writer is not None:
            self._writer.join()
        self._journal.close(ctx)


@dataclass(frozen=True, slots=True)
class Overlap:
    """Two workers acted for `user` in turns, for so long, ending at `until` (seconds since boot)."""

    user: str
    seconds: float
    until: float


def overlaps(folder: Path) -> list[Overlap]:
    """Where a worker began to act before another had done its last act."""
    found = []
    for user, of_worker in _acts(folder):
        last_act = float("-inf")
        for first, last in sorted((min(times), max(times)) for times in of_worker.values()):
            if first < last_act:
                found.append(Overlap(user, min(last, last_act) - first, min(last, last_act)))
            last_act = max(last_act, last)
    return found


def acting(folder: Path, silence_s: float) -> dict[str, list[tuple[float, float]]]:
    """For each user, from when to when one worker acted without falling silent for longer than this. An act
    lasts until the next one is due."""
    found: dict[str, list[tuple[float, float]]] = {}
    for user, of_worker in _acts(folder):
        spans = found[user] = []
        for times in of_worker.values():
            first = last = times[0]
            for at in times:
                if at - last > silence_s:
                    spans.append((first, last + _ACT_EVERY_S))
                    first = at
                last = at
            spans.append((first, last + _ACT_EVERY_S))
    return found


def _acts(folder: Path) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Each user's acts, per worker."""
    for path in sorted(folder.glob("*.log")):
        acts: dict[str, list[float]] = defaultdict(list)
        for line in path.read_text(encoding="utf-8").splitlines():
            at, pid, epoch = line.split()
            acts[f"{pid}/{epoch}"].append(float(at))
        yield path.stem, acts
