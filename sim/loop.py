"""Virtual time: one heap of events, one hub, and actors that are suspended while they wait.

Everything an actor (a function's invocation, a worker's thread) does runs in a greenlet, so that the real,
blocking code can be stopped at any effect and go on later, while others act. Exactly one runs at a time and
the order follows from the heap alone: the same events give the same history.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]


class Killed(BaseException):
    """This actor is dead (crash, SIGKILL, timeout). Not an `Exception`: nothing may catch it and go on."""


class Timer:
    """A planned event; `cancel` makes it do nothing."""

    __slots__ = ("cancelled", "run")

    def __init__(self, run: Callable[[], None]) -> None:
        self.run = run
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Actor:
    """Somebody who acts and can die, freeze or run slow. One actor may have several threads (greenlets)."""

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self.kind = kind
        self.dead = False
        self.frozen_until = 0.0  #: SIGSTOP, GC, a paused virtual machine
        self.cut_off_until = 0.0  #: cannot reach the store
        self.held_until = 0.0  #: one of its threads hangs
        self.threads: list[greenlet] = []


class Loop:
    """The clock and the heap. `now` is in seconds since 1970, as every part of the world sees it."""

    def __init__(self, start: float) -> None:
        self.now = start
        self.steps = 0
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = itertools.count()
        self._hub = getcurrent()
        self.actor: Actor | None = None

    def after(self, seconds: float, run: Callable[[], None]) -> Timer:
        timer = Timer(run)
        heapq.heappush(self._heap, (self.now + max(0.0, seconds), next(self._order), timer))
        return timer

    def run_until(self, end: float, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Run every event up to `end`, or until `stop` says so."""
        heap = self._heap
        while heap and heap[0][0] <= end and not stop():
            at, _, timer = heapq.heappop(heap)
            if timer.cancelled:
                continue
            self.now = at
            self.steps += 1
            timer.run()
        if not stop():
            self.now = max(self.now, end)

    def spawn(self, actor: Actor, body: Callable[[], None]) -> None:
        """Run `body` as a thread of `actor`, from now."""

        def run() -> None:
            try:
                body()
            except Killed:
                pass  # the way an actor ends; `kill` has already said so
            finally:
                actor.threads.remove(thread)

        thread = greenlet(run, parent=self._hub)
        actor.threads.append(thread)
        self._switch(actor, thread)

    def sleep(self, seconds: float) -> None:
        """Suspend the running thread; it may find itself dead afterwards."""
        actor, thread = self._running()
        self.after(seconds, lambda: self._wake(actor, thread))
        self.park()

    def park(self) -> None:
        """Suspend until somebody calls the `resume` of this thread."""
        actor, _ = self._running()
        if actor.dead:
            raise Killed
        self._hub.switch()
        if actor.dead:
            raise Killed

    def resumer(self) -> Callable[[], None]:
        """What wakes the running thread once it is parked."""
        actor, thread = self._running()
        return lambda: self._wake(actor, thread)

    def kill(self, actor: Actor) -> None:
        """End all threads of an actor, here and now."""
        actor.dead = True
        for thread in list(actor.threads):
            if thread is not getcurrent():
                self._switch(actor, thread, Killed)

    def _running(self) -> tuple[Actor, Any]:
        assert self.actor is not None, "only an actor's thread can wait"
        return self.actor, getcurrent()

    def _wake(self, actor: Actor, thread: greenlet) -> None:
        if thread.dead or actor.dead:
            return
        if actor.frozen_until > self.now:
            self.after(actor.frozen_until - self.now, lambda: self._wake(actor, thread))
            return
        self._switch(actor, thread)

    def _switch(self, actor: Actor, thread: greenlet, error: type[BaseException] | None = None) -> None:
        before, self.actor = self.actor, actor
        outer, thread.parent = thread.parent, getcurrent()
        try:
            if error is None:
                thread.switch()
            else:
                thread.throw(error)
        finally:
            self.actor = before
            if not thread.dead:
                thread.parent = outer
