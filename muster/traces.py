"""Spans of a start for OpenTelemetry: one trace from the accepted command to ready.

No message carries a trace: its id is a hash of the command's id (of a repair or a move: with its epoch),
which every part knows anyway. Without an endpoint nothing is made. OTLP over HTTP in its JSON form, by hand
and with the standard library: the SDK would weigh more than an idle pool worker, for three spans in its life.
"""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from hashlib import sha256
from typing import Any

from muster.model import Cause

#: Kept while the collector is away; the oldest go first. Spans are worth less than memory.
_MOST_WAITING = 10_000
_MOST_AT_ONCE = 500
_TIMEOUT_S = 1.0


def trace_of(command_id: str, cause: Cause = Cause.START, epoch: int = 0) -> str:
    """The trace of one start. A repair or a move repeats the owner's command, but is a start of its own."""
    own = f"{command_id}/{epoch}" if cause in (Cause.REPAIR, Cause.MOVE) else command_id
    return sha256(f"muster start {own}".encode()).hexdigest()[:32]


class Spans:
    """Collects the spans of one process and sends them. Never raises and never makes a start wait."""

    def __init__(self, endpoint: str, service: str) -> None:
        self._url = f"{endpoint.rstrip('/')}/v1/traces" if endpoint else ""
        self._service = service
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MOST_WAITING)
        self._sender: threading.Thread | None = None
        self._lock = threading.Lock()

    def add(
        self, trace: str, name: str, began: float, ended: float, *, root: bool = False, **attributes: str
    ) -> None:
        """A span from `began` to `ended` (seconds since 1970). The root is the whole start."""
        if not self._url:
            return
        whole = sha256(trace.encode()).hexdigest()[:16]
        span = {
            "traceId": trace,
            "spanId": whole if root else os.urandom(8).hex(),
            "name": name,
            "kind": 1,
            "startTimeUnixNano": str(round(began * 1e9)),
            "endTimeUnixNano": str(round(max(began, ended) * 1e9)),
            "attributes": _attributes({f"muster.{key}": value for key, value in attributes.items()}),
        }
        self._waiting.append(span if root else span | {"parentSpanId": whole})

    def flush(self) -> None:
        """Send what waits, now: for a function, which is frozen when it has answered."""
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(_MOST_AT_ONCE, len(self._waiting)))]
            if not self._post(batch):
                return

    def flush_soon(self) -> None:
        """As `flush`, from a thread of its own; calls that come meanwhile share it."""
        with self._lock:
            if not self._waiting or (self._sender and self._sender.is_alive()):
                return
            self._sender = threading.Thread(target=self.flush, name="spans", daemon=True)
            self._sender.start()

    def _post(self, batch: list[dict[str, Any]]) -> bool:
        from urllib.request import Request, urlopen

        resource = {"attributes": _attributes({"service.name": self._service})}
        scope = {"scope": {"name": "muster"}, "spans": batch}
        body = json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}).encode()
        request = Request(self._url, body, {"Content-Type": "application/json"})  # noqa: S310 - a setting
        try:
            with urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
                return True
        except OSError:
            return False  # dropped: a collector that is away must not cost a start anything


def _attributes(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]


#: For who makes none.
NO_SPANS = Spans("", "")
