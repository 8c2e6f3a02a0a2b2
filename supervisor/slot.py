"""The supervisor's book entry for one key: what is wanted, the process, and how it has been going."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.config import Spec
from supervisor.health import Seen, Verdict, Want
from supervisor.process import Process


@dataclass(slots=True)
class Report:
    """What the store holds about one key, as one health round read it."""

    heartbeat: float | None = None  #: when it was written, on the supervisor's monotonic clock
    state: dict[str, object] | None = None
    restarting: bool = False

    @property
    def error(self) -> str | None:
        """The error a worker reports of itself."""
        error = (self.state or {}).get("error")
        return None if error is None else str(error)


@dataclass(slots=True)
class Slot:
    """One key. There is never more than one process in a slot: a successor waits until it is empty."""

    spec: Spec
    want: Want = Want.RUNNING
    process: Process | None = None
    spawned_at: float | None = None
    asked_at: float | None = None
    at_once: bool = False  #: when the process is gone, start the next without backoff
    failures: int = 0
    retry_at: float | None = None
    restarts: int = 0  #: processes started after the first
    last_exit: str | None = None
    why: str = "new"  #: the reason of the last verdict
    warned: str | None = None  #: the error last warned about, to say it once

    @property
    def key(self) -> str:
        return self.spec.key

    def notice_exit(self) -> str | None:
        """Empty the slot if its process is gone; how it ended."""
        how = self.process.exit() if self.process else None
        if how is not None:
            self.process, self.asked_at, self.last_exit = None, None, how
        return how

    def seen(self, report: Report, trusted_since: float) -> Seen:
        return Seen(
            want=self.want,
            alive=self.process is not None,
            spawned_at=self.spawned_at,
            heartbeat=report.heartbeat,
            trusted_since=trusted_since,
            failures=self.failures,
            retry_at=self.retry_at,
            asked_at=self.asked_at,
            restarting=report.restarting or self.at_once,
            error=report.error,
        )

    def note(self, verdict: Verdict) -> None:
        """Write down what a verdict said; its act is done elsewhere."""
        self.failures, self.retry_at, self.why = verdict.failures, verdict.retry_at, verdict.why

    def filled(self, process: Process, now: float) -> None:
        """A process was started or adopted for this key."""
        if self.spawned_at is not None:
            self.restarts += 1
        self.process, self.spawned_at, self.asked_at = process, now, None
        self.at_once, self.retry_at = False, None

    def never_started(self, how: str, now: float) -> None:
        """The process could not even be started; the next look counts it as a failure."""
        self.last_exit, self.spawned_at = f"could not be started: {how}", now
        self.at_once, self.retry_at = False, None

    def start_over(self) -> None:
        """Forget the failures: a person, or a changed entry, gives it a new chance."""
        self.failures, self.retry_at, self.at_once = 0, None, True
