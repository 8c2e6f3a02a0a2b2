"""The clockwork of one machine: functions at the blueprint's rates, and one-shot calls at a given time."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from muster.clock import Clock, SystemClock

log = logging.getLogger(__name__)

Call = Callable[[], object]


def in_thread(call: Call) -> None:
    """Run `call` beside the caller. A daemon: a call that hangs must not hold the engine at its exit."""
    threading.Thread(target=call, name="schedule", daemon=True).start()


@dataclass(slots=True)
class _Beat:
    """One function and its rate. `again` remembers a poke that came while it ran."""

    name: str
    call: Call
    period: float
    due: float
    running: bool = False
    again: bool = False


class Schedules:
    """Runs each function on its own beat, never twice at once; a slow one skips beats, it does not pile up.

    `speed` 10 makes the beats come ten times faster; one-shot times are absolute and stay as they are.
    What a function raises is logged, and its next beat comes all the same. Beats are counted on the
    monotonic clock. `spawn` decides where a call runs; tests run it in place.
    """

    def __init__(
        self, clock: Clock | None = None, *, speed: float = 1.0, spawn: Callable[[Call], None] = in_thread
    ) -> None:
        if speed <= 0:
            raise ValueError(f"speed must be above 0, not {speed}")
        self._clock = clock or SystemClock()
        self._speed = speed
        self._spawn = spawn
        self._beats: dict[str, _Beat] = {}
        self._once: list[tuple[float, int, Call]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._in_hand = 0
        self._stopping = False
        self._thread: threading.Thread | None = None

    def every(self, period: timedelta, name: str, call: Call) -> None:
        """Run `call` each `period`, the first time one period from now; `poke` it for a run at the start."""
        seconds = period.total_seconds() / self._speed
        with self._changed:
            if name in self._beats:
                raise ValueError(f"{name} is on the schedule already")
            self._beats[name] = _Beat(name, call, seconds, self._clock.monotonic() + seconds)
            self._changed.notify_all()

    def at(self, when: datetime, call: Call) -> None:
        """Run `call` once at `when`; a time that has passed means now."""
        due = self._clock.monotonic() + when.timestamp() - self._clock.now()
        with self._changed:
            heapq.heappush(self._once, (due, next(self._order), call))
            self._changed.notify_all()

    def poke(self, name: str) -> None:
        """Run `name` at once, beside its beats. While it runs: once more when it is done, so that
        whatever was changed before the poke is seen by a run that began after it."""
        with self._changed:
            beat = self._beats[name]
            if beat.running or self._stopping:
                beat.again = True
                return
            call = self._begin(beat)
        self._spawn(call)

    def run_due(self) -> None:
        """Run what is due by the clock. The thread of `start` calls this; a test may, instead."""
        calls: list[Call] = []
        with self._changed:
            if self._stopping:
                return
            now = self._clock.monotonic()
            for beat in self._beats.values():
                if beat.due > now:
                    continue
                beat.due += (int((now - beat.due) / beat.period) + 1) * beat.period
                if beat.running:
                    log.warning("%s is still running: this beat is skipped", beat.name)
                else:
                    calls.append(self._begin(beat))
            while self._once and self._once[0][0] <= now:
                self._in_hand += 1
                calls.append(partial(self._run_once, heapq.heappop(self._once)[2]))
        for call in calls:
            self._spawn(call)

    def start(self) -> Schedules:
        """Keep time in a thread of its own."""
        self._thread = threading.Thread(target=self._keep_time, name="schedules", daemon=True)
        self._thread.start()
        return self

    def stop(self, timeout: float = 10.0) -> bool:
        """Begin nothing new and wait for what runs; False if something still ran at the deadline."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: self._in_hand == 0, timeout)
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
        return done

    def _keep_time(self) -> None:
        while True:
            self.run_due()
            with self._changed:
                if self._stopping:
                    return
                # Under the lock: what is planned from here on wakes this wait, what came before is in it.
                dues = [beat.due for beat in self._beats.values()] + [due for due, _, _ in self._once[:1]]
                self._changed.wait(max(0.0, min(dues) - self._clock.monotonic()) if dues else None)

    def _begin(self, beat: _Beat) -> Call:
        beat.running = True
        self._in_hand += 1
        return partial(self._run, beat)

    def _run(self, beat: _Beat) -> None:
        while True:
            self._call(beat.name, beat.call)
            with self._changed:
                if beat.again and not self._stopping:
                    beat.again = False
                    continue
                beat.running = beat.again = False
                self._done()
                return

    def _run_once(self, call: Call) -> None:
        self._call("one-shot", call)
        with self._changed:
            self._done()

    def _done(self) -> None:
        self._in_hand -= 1
        self._changed.notify_all()

    def _call(self, name: str, call: Call) -> None:
        try:
            call()
        except Exception:
            log.exception("%s failed; its next run comes as planned", name)
