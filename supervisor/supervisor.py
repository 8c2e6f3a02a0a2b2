"""The supervisor: one process per key of the file, looked after every 10 seconds.

`step` is one turn of its life and returns how long to wait; the main loop repeats it. A turn looks at
exits, reads what the workers reported, renews the lock, asks `supervisor.health.decide` about every slot
and does what it says. A turn that finds nothing to do changes nothing, so it may be taken at any time: by the
timer, by an exit, by a signal, by a call of the API.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from muster.clock import Clock
from muster.errors import LostLease, Refused, TryLater
from muster.store import Store
from supervisor import config
from supervisor.books import Books
from supervisor.config import Spec
from supervisor.health import Act, Limits, Verdict, Want, decide
from supervisor.process import Launcher, Process
from supervisor.slot import Report, Slot
from supervisor.timeline import Timeline
from supervisor.timings import Timings
from worker.cycle_keys import SHUTDOWN, Keys, control_message
from worker.cycle_lock import Lock, name_holder

_LOG = logging.getLogger(__name__)


class AlreadyRunning(Refused):
    """Another supervisor holds the lock."""


class Supervisor:
    """Owns the slots. Whoever touches them holds `guard`: the main loop and the API share them."""

    def __init__(
        self,
        file: Path,
        store: Store,
        launcher: Launcher,
        clock: Clock,
        keys: Keys | None = None,
        timings: Timings | None = None,
    ) -> None:
        keys, self.timings = keys or Keys(), timings or Timings()
        self.file, self.clock = file, clock
        self.limits = Limits.of(self.timings)
        self.lock = Lock(store, keys.supervisor_lock, self.timings.supervisor_lock_ttl, clock)
        self.books = Books(store, keys, self.timings, clock)
        self.slots: dict[str, Slot] = {}
        self.timeline = Timeline()
        self.guard = threading.RLock()
        self._launcher = launcher
        self._trusted_since = clock.monotonic()

    def begin(self) -> None:
        """Take the lock, read the file, adopt what still lives. AlreadyRunning; Refused for a broken file."""
        holder = self.lock.take()
        if holder is not None:
            raise AlreadyRunning(
                f"another supervisor is running: {name_holder(holder)} holds {self.lock.key}; "
                "stop that one first, or use another --prefix"
            )
        try:
            specs = config.load(self.file)
        except Refused:
            self.lock.release()
            raise
        stopped = self.books.stopped()
        for spec in specs.values():
            self.slots[spec.key] = Slot(spec, Want.STOPPED if spec.key in stopped else Want.RUNNING)
        # Keys that ran under a predecessor and are no longer in the file: their workers must leave.
        for key in sorted(self.books.active() - set(specs)):
            self.slots[key] = Slot(Spec(key=key, strategy="", interval_sec=1, settings={}), Want.REMOVED)
        for slot in self.slots.values():
            self._adopt(slot)

    def step(self) -> float:
        """One turn; how many seconds may pass until the next. LostLease: leave, and touch no worker."""
        with self.guard:
            now = self.clock.monotonic()
            for slot in self.slots.values():
                if how := slot.notice_exit():
                    self._tell(slot, "exited", how)
            try:
                # Read first, then renew: if the server was emptied before we read, the renewal tells.
                reports = self.books.reports(list(self.slots))
                self._renew()
                self.write_books()
                for slot in list(self.slots.values()):
                    self._look(slot, reports[slot.key])
            except TryLater as away:
                # Without the store nothing is known, so nobody is killed and nobody is started.
                _LOG.warning("health round put off: %s", away)
                self._trusted_since = now
                return min(1.0, self.timings.health_every.total_seconds())
            due = (now + self.timings.health_every.total_seconds(), *self._appointments())
            return max(0.0, min(due) - self.clock.monotonic())

    def reload(self) -> None:
        """Read the file again: removed keys leave, new ones start, changed ones restart.

        Raises Refused for a broken file; then nothing has changed.
        """
        with self.guard:
            specs = config.load(self.file)
            for key, slot in self.slots.items():
                if key not in specs:
                    slot.want = Want.REMOVED
            for key, spec in specs.items():
                known = self.slots.get(key)
                if known is None:
                    self.slots[key] = Slot(spec)
                elif known.want is Want.REMOVED:
                    # Its process may still be leaving: the next one starts when it has left.
                    known.spec, known.want = spec, Want.RUNNING
                    known.start_over()
                elif known.spec != spec:
                    known.spec = spec
                    known.start_over()
            _LOG.info("%s read again: %d workers", self.file, len(specs))

    def end(self, wait: Callable[[float], None]) -> None:
        """Ask every worker to leave, wait up to the grace, kill the rest, release the lock."""
        with self.guard:
            try:
                self._renew()
            except TryLater as away:
                _LOG.warning("shutting down without the store: %s", away)
            self.books.publish(control_message(SHUTDOWN))
            for slot in self._living():
                self._ask(slot, "the supervisor is shutting down", publish=False)
            deadline = self.clock.monotonic() + self.limits.grace
            while self._living() and (left := deadline - self.clock.monotonic()) > 0:
                wait(left)
            for slot in self._living():
                self._kill(slot, f"still here {self.limits.grace:g} s after SHUTDOWN")
            while self._living():
                wait(self.limits.grace)
            try:
                self.books.write((), (s.key for s in self.slots.values() if s.want is Want.STOPPED))
                self.lock.release()
            except TryLater as away:
                _LOG.warning("lock not released, it ends by itself: %s", away)

    def processes(self) -> list[Process]:
        """The living processes, to wait for their exits."""
        with self.guard:
            return [slot.process for slot in self.slots.values() if slot.process]

    def _renew(self) -> None:
        """Rule 1. A lock the server forgot is taken again, and silence is held against nobody for a while."""
        before = self.lock.taken
        other = self.lock.renew()
        if other is not None:
            raise LostLease(f"{name_holder(other)} holds {self.lock.key} now; leaving the workers to it")
        if self.lock.taken != before:
            _LOG.warning("the server had forgotten our lock; workers get time to report again")
            self._trusted_since = self.clock.monotonic()

    def write_books(self) -> None:
        """Tell the store, and through it a successor, what runs and what a person stopped."""
        slots = self.slots.values()
        self.books.write(
            active=(s.key for s in slots if s.want is not Want.STOPPED or s.process),
            stopped=(s.key for s in slots if s.want is Want.STOPPED),
        )

    def _look(self, slot: Slot, report: Report) -> None:
        seen = slot.seen(report, self._trusted_since)
        verdict = decide(seen, self.clock.monotonic(), self.limits)
        if seen.failures < self.limits.give_up_after <= verdict.failures:
            self._tell(slot, "given up", verdict.why, logging.ERROR)
        elif verdict.why != slot.why:
            _LOG.info("%s: %s", slot.key, verdict.why)
        slot.note(verdict)
        self._warn(slot, verdict)
        match verdict.act:
            case Act.SPAWN:
                self._fill(slot)
            case Act.ASK:
                self._ask(slot, verdict.why)
            case Act.KILL:
                self._kill(slot, verdict.why)
            case Act.FORGET:
                del self.slots[slot.key]
                self.write_books()

    def _warn(self, slot: Slot, verdict: Verdict) -> None:
        if verdict.warning and verdict.warning != slot.warned:
            _LOG.warning("%s reports an error: %s", slot.key, verdict.warning)
        slot.warned = verdict.warning

    def _fill(self, slot: Slot) -> None:
        if self._adopt(slot):
            return
        # Before the spawn: left behind, the flag would make the new process leave again.
        self.books.clear_restart(slot.key)
        try:
            process = self._launcher.spawn(slot.spec)
        except OSError as failed:  # no memory, no more processes: a failure like a crash, with its backoff
            self._tell(slot, "not started", f"could not be started: {failed}", logging.ERROR)
            slot.never_started(str(failed), self.clock.monotonic())
            return
        slot.filled(process, self.clock.monotonic())
        self._tell(slot, "started", f"started as pid {process.pid}")

    def _adopt(self, slot: Slot) -> bool:
        """Take over the living process that holds the key's lock, if this machine has it."""
        value = self.books.lock_value(slot.key)
        process = self._launcher.adopt(value) if value is not None else None
        if process is None:
            return False
        slot.filled(process, self.clock.monotonic())
        self._tell(slot, "adopted", f"adopted pid {process.pid}")
        if slot.want is Want.RUNNING and process.spec_text != slot.spec.text():
            slot.at_once = True  # its entry changed while nobody looked: `decide` replaces it
        return True

    def _ask(self, slot: Slot, why: str, *, publish: bool = True) -> None:
        assert slot.process is not None
        self._tell(slot, "asked to leave", f"pid {slot.process.pid} asked to leave: {why}")
        slot.asked_at = self.clock.monotonic()
        slot.at_once = slot.want is Want.RUNNING
        if publish:
            self.books.publish(control_message(SHUTDOWN, slot.key))
        # Also by signal: a worker that is still booting does not listen to the channel yet.
        slot.process.send(signal.SIGTERM)

    def _kill(self, slot: Slot, why: str) -> None:
        assert slot.process is not None
        self._tell(slot, "killed", f"pid {slot.process.pid} killed: {why}", logging.WARNING)
        slot.process.send(signal.SIGKILL)

    def _tell(self, slot: Slot, event: str, detail: str, level: int = logging.INFO) -> None:
        _LOG.log(level, "%s: %s", slot.key, detail)
        self.timeline.add(self.clock.now(), slot.key, event, detail)

    def _living(self) -> list[Slot]:
        for slot in self.slots.values():
            slot.notice_exit()
        return [slot for slot in self.slots.values() if slot.process]

    def _appointments(self) -> Iterable[float]:
        for slot in self.slots.values():
            if slot.retry_at is not None:
                yield slot.retry_at
            if slot.asked_at is not None:
                yield slot.asked_at + self.limits.grace
