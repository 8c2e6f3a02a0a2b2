"""What the supervisor shows and accepts: plain data out, a person's commands in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from muster.errors import Refused
from muster.model import Phase
from supervisor.health import Want
from supervisor.slot import Report, Slot
from supervisor.supervisor import Supervisor
from supervisor.timeline import Entry


class UnknownKey(Refused):
    """There is no such worker."""


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
        """Every worker now, by key. TryLater when the store is away."""
        with self._supervisor.guard:
            slots = self._supervisor.slots
            reports = self._supervisor.books.reports(sorted(slots))
            return [self._status(slots[key], report) for key, report in reports.items()]

    def status_one(self, key: str) -> WorkerStatus:
        """One worker now. UnknownKey; TryLater when the store is away."""
        with self._supervisor.guard:
            slot = self._slot(key)
            return self._status(slot, self._supervisor.books.reports([key])[key])

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

    def history(self, key: str, limit: int) -> list[Entry]:
        """What happened to a worker lately, oldest first."""
        with self._supervisor.guard:
            return self._supervisor.timeline.of(key, limit)

    def news(self, number: int | None) -> tuple[int, list[Entry] | None]:
        """The number to ask with next, and what happened after `number`: None if some of it is forgotten."""
        with self._supervisor.guard:
            timeline = self._supervisor.timeline
            return timeline.last, [] if number is None else timeline.since(number)

    def _slot(self, key: str) -> Slot:
        slot = self._supervisor.slots.get(key)
        if slot is None or slot.want is Want.REMOVED:
            raise UnknownKey(f"{key} is not in {self._supervisor.file}; add it there and reload")
        return slot

    def _done(self, slot: Slot) -> WorkerStatus:
        self._supervisor.write_books()
        self._wake()
        return self.status_one(slot.key)

    def _status(self, slot: Slot, report: Report) -> WorkerStatus:
        now = self._supervisor.clock.monotonic()
        waiting = slot.process is None and slot.retry_at is not None
        return WorkerStatus(
            key=slot.key,
            phase=self._phase(slot, report),
            why=slot.why,
            pid=slot.process.pid if slot.process else None,
            heartbeat_age=None if report.heartbeat is None else max(0.0, now - report.heartbeat),
            age=now - slot.spawned_at if slot.process and slot.spawned_at is not None else None,
            restarts=slot.restarts,
            failures=slot.failures,
            backoff=self._supervisor.limits.backoff(slot.failures) if waiting else None,
            next_try_in=max(0.0, slot.retry_at - now) if waiting and slot.retry_at is not None else None,
            last_exit=slot.last_exit,
            error=report.error,
            published=report.state,
        )

    def _phase(self, slot: Slot, report: Report) -> Phase:
        if slot.process is not None:
            if slot.asked_at is not None:
                return Phase.DRAINING
            assert slot.spawned_at is not None
            beats = report.heartbeat is not None and report.heartbeat >= slot.spawned_at
            return Phase.READY if beats else Phase.STARTING
        if slot.want is not Want.RUNNING:
            return Phase.STOPPED
        if slot.failures >= self._supervisor.limits.give_up_after:
            return Phase.FAILED
        return Phase.BACKING_OFF if slot.retry_at is not None else Phase.STARTING
