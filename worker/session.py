"""What a worker does for its user. Brokers, strategies and agents implement `Session`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from muster.errors import MusterError
from muster.model import Assignment, Phase
from muster.scrub import hide
from worker.lease import Lease


class SessionRefused(MusterError):
    """This session can never work (bad credentials). The worker exits and says why; retries will not help."""


@dataclass
class Context:
    """What a session is given: whom it serves, its lease, the wish to stop, and a way to be seen."""

    given: Assignment
    lease: Lease
    stopping: threading.Event
    #: Called after `publish`, so that the new state goes out with the next beat at once.
    beat_now: Callable[[], None]
    state: dict[str, Any] = field(default_factory=dict)

    def publish(self, **state: Any) -> None:
        """Merge into the state that people see, and send it now. What is no JSON is the caller's error."""
        json.dumps(state)
        self.state = self.state | state
        self.beat_now()

    def connecting(self, why: str) -> None:
        """The session is away for a while; the phase says so."""
        self.publish(phase=Phase.CONNECTING.value, reason=why)

    def connected(self) -> None:
        """The session is back."""
        self.publish(phase=Phase.READY.value, reason="")

    def state_json(self) -> str:
        return hide(json.dumps(self.state, separators=(",", ":")))


class Session(Protocol):
    """One life of acting for one user. Called from one thread: open, run, close."""

    def open(self, ctx: Context) -> None:
        """Connect. Ready is published when this returns. `SessionRefused` ends the worker for good."""
        ...

    def run(self, ctx: Context) -> None:
        """Act until `ctx.stopping` is set; ask `ctx.lease` before every side effect."""
        ...

    def close(self, ctx: Context) -> None:
        """Let go of everything. Called once, also after an error, within the lease that is left."""
        ...


@runtime_checkable
class Preloads(Protocol):
    """A session may do the imports and handshakes of its start while its worker waits in the pool."""

    def preload(self) -> None:
        """Import, build and open what `open` will need. Nothing of a user is known yet: connect only to what
        all users share, and count on no connection being there later."""
        ...


class IdleSession:
    """Holds the mark and does nothing: the smallest session, and the one to measure others against."""

    def open(self, ctx: Context) -> None:
        ctx.lease.require()

    def run(self, ctx: Context) -> None:
        ctx.stopping.wait()

    def close(self, ctx: Context) -> None:
        """Nothing is held."""


def session_named(name: str) -> Session:
    """A session by its short name, or by `module:Class`."""
    if name == "idle":
        return IdleSession()
    module, _, attribute = name.partition(":")
    if not attribute:
        raise SessionRefused(f"MUSTER_SESSION is {name!r}: use 'idle', or module:Class")
    from importlib import import_module

    session: Session = getattr(import_module(module), attribute)()
    return session
