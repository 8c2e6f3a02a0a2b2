"""What the supervisor shows and accepts: plain data out, a person's commands in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from muster.errors import Refused
from supervisor.health import Want
from supervisor.slot import Slot
from supervisor.supervisor import Supervisor


class UnknownKey(Refused):
    """There is no such worker."""


class Phase(StrEnum):
    """Where a worker is in its life, in one word."""

    STARTING = "starting"  #: its process runs and has not beaten yet
    RUNNING = "running"  #: its process runs and beats
    ERROR = "error"  #: it runs and beats, and its last cycle failed
    STOPPING = "stopping"  #: asked to leave, not gone yet
    WAITING = "waiting"  #: gone; the next try has a time
    FAILED = "failed"  #: given up; only a person starts it again
    STOPPED = "stopped"  #: a person stopped it


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """One worker as a person wants to see it. Times are seconds from now, ages are positive."""

    key: str
    phase: Phase
    why: str
    pid: int | None
    heartbeat_age: float | None
    age: float | None  #: of the process
    restarts: int
    failures: int
    backoff: float | None  #: the pause it is in
    next_try_in: float | None
    last_exit: str | None
    error: str | None
    published: dict[str, object] | None


class Fleet:
    """The supervisor's workers. `wake` makes the supervisor act on a command now."""

    def __init__(self, supervisor: Supervisor, wake: Callable[[], None]) -> None:
        self._supervisor = supervisor
        self._wake = wake

    def status_all(self) -> list[WorkerStatus]:
        """Every worker, by key."""
        with self._supervisor.guard:
            return [self._status(slot) for _, slot in sorted(self._supervisor.slots.items())]

    def status_one(self, key: str) -> WorkerStatus:
        """One worker. Raises UnknownKey."""
        with self._supervisor.guard:
            return self._status(self._slot(key))

    def restart(self, key: str) -> WorkerStatus:
        """Replace the worker's process now, without backoff; also revives one that was given up.

        UnknownKey; Refused for a stopped one; TryLater when the store is away.
        """
        with self._supervisor.guard:
            slot = self._slot(key)
            if slot.want is Want.STOPPED:
                raise Refused(f"{key} is stopped; start it instead")
            self._supervisor.books.flag_restart(key)
            slot.start_over()
            return self._done(slot)

    def stop(self, key: str) -> WorkerStatus:
        """Let the worker leave and start none until a person says so; a successor keeps to it. UnknownKey."""
        with self._supervisor.guard:
            slot = self._slot(key)
            slot.want = Want.STOPPED
            return self._done(slot)

    def start(self, key: str) -> WorkerStatus:
        """Take a stop back, or try again one that was given up; no change for a running one. UnknownKey."""
        with self._supervisor.guard:
            slot = self._slot(key)
            if slot.want is Want.STOPPED or slot.process is None:
                slot.want = Want.RUNNING
                slot.start_over()
            return self._done(slot)

    def reload(self) -> list[WorkerStatus]:
        """Read the file again. Refused, with the reason, for a broken file: then nothing changed."""
        self._supervisor.reload()
        self._wake()
        return self.status_all()

    def _slot(self, key: str) -> Slot:
        slot = self._supervisor.slots.get(key)
        if slot is None or slot.want is Want.REMOVED:
            raise UnknownKey(f"{key} is not in {self._supervisor.file}; add it there and reload")
        return slot

    def _done(self, slot: Slot) -> WorkerStatus:
        self._supervisor.write_books()
        self._wake()
        return self._status(slot)

    def _status(self, slot: Slot) -> WorkerStatus:
        now = self._supervisor.clock.monotonic()
        report = slot.report
        beat = report.heartbeat if report else None
        waiting = slot.process is None and slot.retry_at is not None
        return WorkerStatus(
            key=slot.key,
            phase=self._phase(slot),
            why=slot.why,
            pid=slot.process.pid if slot.process else None,
            heartbeat_age=None if beat is None else max(0.0, now - beat),
            age=now - slot.spawned_at if slot.process and slot.spawned_at is not None else None,
            restarts=slot.restarts,
            failures=slot.failures,
            backoff=self._supervisor.limits.backoff(slot.failures) if waiting else None,
            next_try_in=max(0.0, slot.retry_at - now) if waiting and slot.retry_at is not None else None,
            last_exit=slot.last_exit,
            error=report.error if report else None,
            published=report.state if report else None,
        )

    def _phase(self, slot: Slot) -> Phase:
        if slot.process is not None:
            if slot.asked_at is not None:
                return Phase.STOPPING
            report = slot.report
            if report is None or report.heartbeat is None or slot.spawned_at is None:
                return Phase.STARTING
            if report.heartbeat < slot.spawned_at:
                return Phase.STARTING
            return Phase.ERROR if report.error else Phase.RUNNING
        if slot.want is not Want.RUNNING:
            return Phase.STOPPED
        if slot.failures >= self._supervisor.limits.give_up_after:
            return Phase.FAILED
        return Phase.WAITING
