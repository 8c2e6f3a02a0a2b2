"""What stands between a session and the rest of the world: patience, and a phase that says what is away."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from muster.brokers.backoff import Backoff
from muster.brokers.port import BadCredentials
from muster.clock import Clock
from muster.errors import MusterError, TryLater
from worker.session import Context, SessionRefused

T = TypeVar("T")


class Stopping(MusterError):
    """The worker was told to stop while it waited; what it waited for is left to its successor."""


class Link:
    """Used by the threads of one session. The phase is connecting while any part is away, else ready."""

    def __init__(self, ctx: Context, clock: Clock) -> None:
        self._ctx = ctx
        self._clock = clock
        self._lock = threading.Lock()
        self._away: dict[str, str] = {}

    def away(self, part: str, why: str) -> None:
        """This part does not answer. Told once per absence, not once per attempt."""
        with self._lock:
            if part in self._away:
                return
            self._away[part] = why
            say(f"{part} away: {why}")
            self._ctx.connecting(f"{part} away: {why}")

    def back(self, part: str) -> None:
        with self._lock:
            if self._away.pop(part, None) is None:
                return
            say(f"{part} back")
            if not self._away:
                self._ctx.connected()

    def patiently(self, part: str, call: Callable[[], T]) -> T:
        """Call until it answers, with growing pauses. `Stopping` when told to stop meanwhile; bad
        credentials end the session for good."""
        backoff = Backoff(self._clock)
        while True:
            try:
                answer = call()
            except TryLater as later:
                self.away(part, str(later))
                pause = backoff.failed(later.after)
            except BadCredentials as refused:
                raise SessionRefused(str(refused)) from refused
            else:
                self.back(part)
                return answer
            if self._ctx.stopping.wait(pause.total_seconds()):
                raise Stopping(f"told to stop while {part} was away")

    def recorded(self, order_id: str, answer: Sequence[str]) -> None:
        """What the record answered to a report. Whoever comes second finds a contradiction and counts it: the
        order_tasks function, or here the worker whose report comes after the check."""
        tag, *detail = answer
        if tag == "differs":
            say(f"order {order_id}: the broker had said something else than {detail[0]}")
            self.count("differs")
            tell_differs()

    def count(self, name: str) -> None:
        """One more of these; it goes out with the next beat."""
        with self._lock:
            self._ctx.state = self._ctx.state | {name: self._ctx.state.get(name, 0) + 1}


def say(message: str) -> None:
    """One line of the worker's log. Never anything of a secret."""
    print(json.dumps({"at": round(time.time(), 3), "pid": os.getpid(), "message": message}), flush=True)


def tell_differs() -> None:
    """One EMF line on standard output, as the order_tasks function writes it for its own."""
    spec = {
        "Namespace": "Muster",
        "Dimensions": [["outcome", "service"]],
        "Metrics": [{"Name": "FillChecks", "Unit": "Count"}],
    }
    stamp = {"Timestamp": round(time.time() * 1000), "CloudWatchMetrics": [spec]}
    said = {"outcome": "differs", "service": "worker", "FillChecks": 1}
    print(json.dumps({"_aws": stamp} | said), flush=True)
