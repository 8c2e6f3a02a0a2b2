"""Chaos on real processes: load, faults on everything around the workers, and an audit from outside.

The judge is not the system itself: the workers' own journals say who acted when, the processes say who lives,
and the driver remembers what it asked for last. One seed gives one plan of faults.
"""

from __future__ import annotations

import random
import signal
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis

from local.driver import EngineProcess, send_signal, until
from muster import blueprint
from worker.journal import Overlap, overlaps

USERS = 10
POOL = 3
SPEED = 10
#: Between two faults: long enough for a heal, short enough to overlap with the next trouble.
PAUSE_S = (2.0, 6.0)
#: After the last fault the fleet must settle within a frozen worker's longest replacement.
SETTLE_S = 120.0
FULL_DISK_S = 4.0
_BEAT_S = blueprint.MARK_BEAT.total_seconds()


@dataclass
class Fault:
    """One injected fault. `healed_s` is when all was well again after it was felt; 0 if it never was."""

    at_s: float
    kind: str
    target: str = ""
    healed_s: float = 0.0
    shows_within_s: float = 3.0  #: a fault that is not felt by then did no harm


@dataclass
class Report:
    """What a chaos run did and saw."""

    seed: int
    seconds: float = 0.0
    commands: int = 0
    commands_refused: int = 0
    faults: list[Fault] = field(default_factory=list)
    samples: list[tuple[float, int, int]] = field(default_factory=list)  #: (at, wanted, as wanted)
    double_workers: int = 0
    overlaps_after_loss: list[float] = field(default_factory=list)
    lost_commands: list[str] = field(default_factory=list)
    processes_left: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """The promises that were not kept."""
        found = []
        if self.double_workers:
            found.append(f"{self.double_workers} times two workers acted at once")
        if self.lost_commands:
            found.append(f"users that did not end as last asked: {', '.join(self.lost_commands)}")
        if any(seconds > _BEAT_S for seconds in self.overlaps_after_loss):
            found.append("after a loss of data two workers overlapped for longer than one beat")
        if self.processes_left:
            found.append(f"processes left running: {'; '.join(self.processes_left)}")
        return found

    def summary(self) -> dict[str, Any]:
        heals = sorted(fault.healed_s for fault in self.faults)
        kinds = {fault.kind for fault in self.faults}
        ready = sum(have for _, _, have in self.samples)
        wanted = sum(want for _, want, _ in self.samples)
        cuts = (
            statistics.quantiles(heals, n=20, method="inclusive") if len(heals) > 1 else [*heals, *heals] * 10
        )
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "commands": self.commands,
            "commands_refused": self.commands_refused,
            "faults": {kind: sum(fault.kind == kind for fault in self.faults) for kind in sorted(kinds)},
            "load_held": round(ready / wanted, 3) if wanted else 1.0,
            "heal_p50_s": round(cuts[9], 2) if heals else None,
            "heal_p95_s": round(cuts[18], 2) if heals else None,
            "heal_max_s": round(heals[-1], 2) if heals else None,
            "double_workers": self.double_workers,
            "overlaps_after_loss_s": [round(seconds, 2) for seconds in self.overlaps_after_loss],
            "commands_lost": self.lost_commands,
            "promises_broken": self.broken,
        }


class Chaos:
    """One run. `say` gets a line per fault."""

    def __init__(self, folder: Path, seed: int, seconds: float, say: Callable[[str], None]) -> None:
        self._journal = folder / "journal"
        self._journal.mkdir(parents=True)
        self._engine = EngineProcess(
            folder / "engine",
            *("--pool", str(POOL), "--speed", str(SPEED), "--session", "worker.journal:JournalSession"),
            env={"MUSTER_SESSION_JOURNAL": str(self._journal)},
        )
        self._random = random.Random(seed)  # noqa: S311 - a plan that can be repeated, not a secret
        self._seconds = seconds
        self._say = say
        self.report = Report(seed)
        self._wanted: dict[str, bool] = {}
        self._frozen: dict[int, float] = {}
        self._losses: list[float] = []
        self._lock = threading.Lock()
        self._done = threading.Event()

    def run(self) -> Report:
        """Load, faults, settle, audit."""
        try:
            self._engine.start()
            self._began = time.monotonic()
            for number in range(USERS):
                self._ask(f"u{number}", "start")
            self._settled(60)
            sampler = threading.Thread(target=self._sample, daemon=True)
            sampler.start()
            while time.monotonic() - self._began < self._seconds:
                self._load()
                self._inject()
                self._pause(self._random.uniform(*PAUSE_S))
            self._wake_all()
            self._say("no more faults: the fleet must settle")
            self._settled(SETTLE_S)
            self._done.set()
            sampler.join()
            self._audit_wishes()
            self._engine.stop()
        finally:
            self._done.set()
            self._wake_all()
            self.report.processes_left = [" ".join(left.cmdline()) for left in self._engine.processes()]
            self._engine.end()
        self.report.seconds = time.monotonic() - self._began
        self._measure_heals()
        self._audit_journals()
        return self.report

    def _faults(self) -> list[tuple[int, str, Callable[[], str]]]:
        """Every fault with its weight: the mundane ones come more often."""
        return [
            (6, "kill worker", self._kill_worker),
            (3, "freeze worker", self._freeze_worker),
            (3, "starve worker", self._starve_worker),
            (2, "drop connections", self._drop_connections),
            (2, "kill api", self._kill_api),
            (2, "kill engine", self._kill_engine),
            (2, "kill valkey", self._kill_valkey),
            (1, "empty valkey", self._empty_valkey),
            (1, "kill aws endpoint", self._kill_endpoint),
            (2, "full disk", self._fill_disk),
        ]

    def _inject(self) -> None:
        faults = self._faults()
        ((_, kind, inject),) = self._random.choices(faults, weights=[weight for weight, _, _ in faults])
        fault = Fault(time.monotonic() - self._began, kind)
        with self._lock:
            self.report.faults.append(fault)
        fault.target = inject()
        if kind == "freeze worker":
            fault.shows_within_s = blueprint.MARK_TTL.total_seconds() + 3
        self._say(f"{fault.at_s:6.1f} s  {kind} {fault.target}")

    def _load(self) -> None:
        """A person changes their mind now and then."""
        user = f"u{self._random.randrange(USERS)}"
        action = self._random.choice(["start", "start", "start", "restart", "stop"])
        self._ask(user, action)

    def _ask(self, user: str, action: str) -> None:
        """A command counts only when the API accepted it; a refused one changes no wish."""
        try:
            self._engine.command(user, action)
        except httpx.HTTPError:
            self.report.commands_refused += 1
            return
        self.report.commands += 1
        with self._lock:
            self._wanted[user] = action != "stop"

    def _worker_pid(self) -> tuple[str, int] | None:
        """A ready worker, chosen by the seed among those there are."""
        try:
            rows = [row for row in self._engine.workers() if row["phase"] == "ready" and row["pid"]]
        except httpx.HTTPError:
            return None
        if not rows:
            return None
        row = self._random.choice(rows)
        return row["user_id"], row["pid"]

    def _kill_worker(self) -> str:
        if (found := self._worker_pid()) is None:
            return "(none ready)"
        send_signal(found[1], signal.SIGKILL)
        return found[0]

    def _freeze_worker(self) -> str:
        if (found := self._worker_pid()) is None:
            return "(none ready)"
        seconds = self._random.choice([5.0, 20.0, 45.0])
        if send_signal(found[1], signal.SIGSTOP):
            self._frozen[found[1]] = time.monotonic() + seconds
        return f"{found[0]} for {seconds:.0f} s"

    def _starve_worker(self) -> str:
        """Many short stops: a process that hardly gets any time."""
        if (found := self._worker_pid()) is None:
            return "(none ready)"
        for _ in range(15):
            send_signal(found[1], signal.SIGSTOP)
            self._done.wait(0.15)
            send_signal(found[1], signal.SIGCONT)
            self._done.wait(0.02)
        return found[0]

    def _drop_connections(self) -> str:
        return (
            f"{self._valkey_call(lambda client: client.execute_command('CLIENT', 'KILL', 'TYPE', 'normal'))}"
        )

    def _kill_api(self) -> str:
        return self._kill_part("local.api_process")

    def _kill_valkey(self) -> str:
        """SIGKILL; the engine starts it again from its append-only file."""
        return self._kill_part("valkey-server")

    def _empty_valkey(self) -> str:
        """All data gone under live workers. Only while everybody is up: a wish without a worker to restore it
        cannot survive the loss of the only store."""
        self._wake_all()
        if not self._settled(40):
            return "(not settled, left out)"
        self._losses.append(time.clock_gettime(time.CLOCK_BOOTTIME))
        self._valkey_call(lambda client: client.flushall())
        return ""

    def _kill_endpoint(self) -> str:
        """Its queues are in memory: only while nothing waits in them."""
        if not self._settled(40):
            return "(not settled, left out)"
        return self._kill_part("ministack")

    def _fill_disk(self) -> str:
        """For a while the engine can make no file grow, as on a full disk or a used-up quota."""
        assert self._engine.process is not None
        engine = psutil.Process(self._engine.process.pid)
        _, hard = engine.rlimit(psutil.RLIMIT_FSIZE)
        engine.rlimit(psutil.RLIMIT_FSIZE, (0, hard))
        self._load()
        self._pause(FULL_DISK_S)
        engine.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
        return f"for {FULL_DISK_S:.0f} s"

    def _kill_engine(self) -> str:
        self._engine.kill()
        self._engine.start()
        return ""

    def _kill_part(self, name: str) -> str:
        for process in self._engine.processes():
            try:
                if any(name in word for word in process.cmdline()):
                    process.kill()
                    return f"pid {process.pid}"
            except psutil.NoSuchProcess:
                continue
        return "(not running)"

    def _valkey_call(self, call: Callable[[Any], Any]) -> Any:
        client = redis.Redis.from_url(self._engine.endpoints["valkey"], socket_timeout=2)
        try:
            return call(client)
        except redis.RedisError as away:
            return f"({away})"
        finally:
            client.close()

    def _pause(self, seconds: float) -> None:
        """Wait, and wake the frozen whose time has come."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for pid, wake_at in list(self._frozen.items()):
                if time.monotonic() >= wake_at:
                    send_signal(pid, signal.SIGCONT)
                    del self._frozen[pid]
            self._done.wait(0.1)

    def _wake_all(self) -> None:
        for pid in list(self._frozen):
            send_signal(pid, signal.SIGCONT)
            del self._frozen[pid]

    def _settled(self, seconds: float) -> bool:
        def look() -> bool:
            try:
                return self._unsettled() == []
            except httpx.HTTPError:
                return False

        try:
            until(look, "the fleet is as wanted", seconds)
        except TimeoutError:
            return False
        return True

    def _unsettled(self) -> list[str]:
        """Users that are not as last asked."""
        phases = {row["user_id"]: row["phase"] for row in self._engine.workers()}
        with self._lock:
            wanted = dict(self._wanted)
        return [
            user
            for user, running in wanted.items()
            if (phases.get(user) == "ready") != running
            or (not running and phases.get(user, "stopped") != "stopped")
        ]

    def _sample(self) -> None:
        """Ten times a second: how many users are as they were last asked to be."""
        while not self._done.wait(0.1):
            now = time.monotonic() - self._began
            try:
                missing = len(self._unsettled())
            except (httpx.HTTPError, OSError):
                continue
            with self._lock:
                wanted = sum(self._wanted.values())
                self.report.samples.append((round(now, 2), wanted, max(0, wanted - missing)))

    def _measure_heals(self) -> None:
        for fault in self.report.faults:
            after = [(at, want - have) for at, want, have in self.report.samples if at >= fault.at_s]
            felt = next(
                (at for at, missing in after if missing and at < fault.at_s + fault.shows_within_s), None
            )
            if felt is not None:
                well = next((at for at, missing in after if at > felt and not missing), self.report.seconds)
                fault.healed_s = well - fault.at_s

    def _audit_wishes(self) -> None:
        self.report.lost_commands = self._unsettled()

    def _audit_journals(self) -> None:
        """An overlap right after a loss of data has a bound of its own; any other is one too many."""
        for overlap in overlaps(self._journal):
            if self._follows_a_loss(overlap):
                self.report.overlaps_after_loss.append(overlap.seconds)
            else:
                self.report.double_workers += 1

    def _follows_a_loss(self, overlap: Overlap) -> bool:
        return any(0 <= overlap.until - loss <= 2 * _BEAT_S for loss in self._losses)


def plot(report: Report, path: Path) -> None:
    """Wanted and ready workers over time, with the faults as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 3.5))
    times = [at for at, _, _ in report.samples]
    axes.step(times, [want for _, want, _ in report.samples], label="wanted", color="0.6")
    axes.step(times, [have for _, _, have in report.samples], label="ready", color="tab:blue")
    kinds = sorted({fault.kind for fault in report.faults})
    for number, kind in enumerate(kinds):
        marks = [fault.at_s for fault in report.faults if fault.kind == kind]
        axes.vlines(marks, 0, 0.8, colors=f"C{number + 1}", label=kind, linewidth=1)
    axes.set_xlabel("seconds")
    axes.set_ylabel("workers")
    axes.legend(fontsize=7, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.18))
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
