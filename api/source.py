"""What the API shows and changes, as a port: one fleet, whatever runs it.

Plain data out, a person's commands in. The docstrings are the contract; nothing here says how a fleet is
kept. Methods may block for one short call to the store behind them (the API calls them from a thread),
except `command`, `worker` and `events`, which are asynchronous: commands and reads of one worker come in
crowds, and a watcher stays for hours.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from muster.commands import Action
from muster.errors import Refused
from muster.model import Phase, Want


class NotFound(Refused):
    """There is no such user, queue or message."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A command that will be carried out, or found superseded by a newer one; never lost."""

    command_id: str
    repeated: bool  #: the idempotency key was seen before: this is the first command's id


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One user's worker at one moment. What does not apply in its phase is None."""

    user_id: str
    want: Want | None  #: what the owner asked for last; None while a live worker restores it
    phase: Phase
    via: str | None  #: warm or cold
    epoch: int
    task_id: str | None
    pid: int | None  #: where workers are processes of this machine
    heartbeat_age_s: float | None
    since: datetime | None  #: when it came into this phase, as far as is known
    start_latency_ms: int | None  #: from the accepted command (of a repair: from its begin) to ready
    failures: int  #: in a row
    reason: str | None  #: why it is not what was asked for
    version: str | None
    restarts: int | None = None  #: of its process, where one host counts them
    backoff_s: float | None = None  #: the pause it is in
    next_try_at: datetime | None = None  #: when the next attempt may come


class Sort(StrEnum):
    """What a list can be sorted by; a leading minus turns it round."""

    USER = "user_id"
    USER_DOWN = "-user_id"
    PHASE = "phase"
    PHASE_DOWN = "-phase"
    SINCE = "since"
    SINCE_DOWN = "-since"
    FAILURES = "failures"
    FAILURES_DOWN = "-failures"
    LATENCY = "start_latency_ms"
    LATENCY_DOWN = "-start_latency_ms"


@dataclass(frozen=True, slots=True)
class WorkerQuery:
    """Which workers, in which order, and where the page before ended."""

    phase: Phase | None = None
    q: str = ""  #: part of the user id or of the reason, in any case
    sort: Sort = Sort.USER
    cursor: str = ""  #: of the page before; empty is the first page
    limit: int = 50


@dataclass(frozen=True, slots=True)
class Page:
    """Some of the workers that match."""

    workers: Sequence[WorkerView]
    next_cursor: str | None  #: None: this was the last page
    total: int  #: how many match
    counts: Mapping[Phase, int]  #: of all users; empty while a large fleet is being counted


@dataclass(frozen=True, slots=True)
class Transition:
    """One line of a user's time line."""

    at: datetime
    event: str
    epoch: int
    detail: str
    why: str


@dataclass(frozen=True, slots=True)
class NextStep:
    """What happens next by itself."""

    action: str  #: none, wait, restart, forget, adopt, stop
    why: str
    not_before: datetime | None  #: None where nothing is due
    by: datetime | None  #: no later than this, while maintenance runs


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a user's worker is as it is, oldest transition first."""

    worker: WorkerView
    history: Sequence[Transition]
    next: NextStep


@dataclass(frozen=True, slots=True)
class MarkView:
    """The lease under which a worker acts, and its beats."""

    worker_id: str
    epoch: int
    cause: str  #: why this worker was started
    since: datetime
    ready_at: datetime | None
    beat_age_s: float
    ends_in_s: float  #: unless it beats again


@dataclass(frozen=True, slots=True)
class LeaseView:
    """A start that is under way."""

    epoch: int
    task_id: str | None
    cause: str
    since: datetime | None
    ends_in_s: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything there is to know of one user's worker, for a person who looks at it."""

    worker: WorkerView
    history: Sequence[Transition]  #: newest first
    next: NextStep
    command_id: str | None  #: of the owner's last command
    issued_at: datetime | None
    mark: MarkView | None
    lease: LeaseView | None
    state: Mapping[str, Any]  #: what the worker last published of itself


class StartKind(StrEnum):
    """What a start's time is compared with."""

    WARM = "warm"  #: claimed from the pool
    COLD = "cold"  #: launched for this user
    REPAIR = "repair"  #: made by maintenance, after a loss


@dataclass(frozen=True, slots=True)
class StartRecord:
    """One worker that became ready."""

    at: datetime
    user_id: str
    kind: StartKind
    latency_ms: int  #: from the accepted command (of a repair: from its begin) to ready
    heal_ms: int | None  #: of a repair: from the moment the loss was seen to ready


@dataclass(frozen=True, slots=True)
class BulkOrder:
    """One command for everybody who matches. `selection` is what the person who asks saw and confirmed."""

    action: Action
    phase: Phase | None
    q: str
    selection: str
    reason: str


@dataclass(frozen=True, slots=True)
class BulkAccepted:
    """The command was accepted for each of them."""

    action: Action
    users: int
    repeated: bool  #: the idempotency key was seen before: these are the users of the first time


@dataclass(frozen=True, slots=True)
class PoolView:
    """The warm pool."""

    name: str
    target: int
    idle: int
    outstanding: int  #: claims sent and not taken yet
    launching: int  #: launched and not reported yet
    version: str | None


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue; the counts are approximate, as the queue service gives them."""

    name: str
    depth: int
    in_flight: int
    dead_letter: int | None  #: messages given up; None where a queue keeps none


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was given up."""

    message_id: str
    group: str | None  #: the user or order it was for
    body: str
    reason: str | None  #: None: it was not parked with a reason, it failed too often
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class Event:
    """Something happened to a user's worker."""

    user_id: str
    event: str
    epoch: int
    at: datetime
    detail: str


@dataclass(frozen=True, slots=True)
class LogPage:
    """Lines of a worker's output, and where to go on reading."""

    task_id: str
    lines: Sequence[str]
    cursor: str


class FleetSource(Protocol):
    """A fleet as the API needs it.

    Every method may raise `TryLater` (what it asks is away: nothing is known to have changed, the same call
    may be repeated), `BadCommand` (the input can never work) and `Refused` or `NotFound` (nothing changed).
    """

    async def command(
        self,
        user_id: str,
        action: Action,
        *,
        idempotency_key: str = "",
        credentials_ref: str = "",
        reason: str = "",
    ) -> Accepted:
        """Accept a command for one user. Commands of one user are carried out in the order of acceptance.

        A repeat with the same key for the same user within 24 hours is the same command at its first moment:
        it never overtakes what was accepted since. The same key with other content is `Refused`.
        """
        ...

    async def worker(self, user_id: str) -> WorkerView | None:
        """The present state of one user, never cached; None if nobody ever asked for this user."""
        ...

    def workers(self, query: WorkerQuery) -> Page:
        """A page of users, at most a few seconds old. A cursor goes on after the last row it was given for:
        rows never shift between pages, but a row whose sort value changed meanwhile may be seen twice."""
        ...

    def counts(self) -> Mapping[Phase, int]:
        """Users by phase, every phase named, as old as `workers`."""
        ...

    def explain(self, user_id: str) -> Explanation:
        """Why this user's worker is as it is and what comes next. `NotFound` for an unknown user."""
        ...

    def timeline(self, user_id: str) -> Timeline:
        """All of one user's worker: its time line, its mark and beats, its state. `NotFound`."""
        ...

    def starts(self, limit: int) -> Sequence[StartRecord]:
        """The last starts of all users that became ready, newest first, a few seconds old at most."""
        ...

    def matching(self, phase: Phase | None, q: str) -> Sequence[str]:
        """The ids of all users that match, sorted, as old as `workers`."""
        ...

    def bulk(self, order: BulkOrder, idempotency_key: str) -> BulkAccepted:
        """Accept the command for every user that matches. `Refused` if they are not the ones of
        `order.selection` any more. A repeat with the same key is for the users of the first time and each of
        its commands is the same command; after a `TryLater` some were accepted and a repeat does the rest."""
        ...

    def pool(self) -> PoolView:
        """The warm pool now."""
        ...

    def set_pool_target(self, target: int) -> PoolView:
        """Keep this many idle workers from now on; the workers follow. A repeat changes nothing."""
        ...

    def queues(self) -> Sequence[QueueView]:
        """Every queue with what waits in it."""
        ...

    def dead_letters(self, queue: str, limit: int = 50) -> Sequence[DeadLetter]:
        """Look at what `queue` gave up, without taking it. Of one user or order at most ten are shown."""
        ...

    def redrive(self, queue: str, message_id: str | None = None) -> int:
        """Send what was given up (or the one message) round again; how many went.

        A command keeps its first moment: one that a newer command has overtaken stays overtaken. A crash in
        the middle may send one message twice, which is harmless; it loses none.
        """
        ...

    def purge(self, queue: str) -> int:
        """Throw away what `queue` gave up; about how many messages that was."""
        ...

    def logs(self, user_id: str, lines: int, cursor: str = "") -> LogPage:
        """The last lines of this user's worker, or with a cursor what came since (from the start of its
        successor's output, if there is one now). `Refused` where the logs are kept somewhere else."""
        ...

    def events(self, idle_s: float) -> AsyncIterator[Event | None]:
        """What happens from now on, and None whenever nothing did for `idle_s`.

        Ends when events may have been missed (the listener is too slow, the store was away): look at the
        state again and listen anew.
        """
        ...

    def check(self) -> None:
        """Return if everything the fleet needs answers; else `TryLater` says what does not."""
        ...
