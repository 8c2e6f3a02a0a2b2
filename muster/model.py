"""The words of the system as types. Standard library only: a waiting worker imports this module."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Want(StrEnum):
    """What the owner asked for last."""

    RUNNING = "running"  #: keep one worker alive
    STOPPED = "stopped"  #: none; anything alive is on its way out
    FAILED = "failed"  #: given up after too many failures; only a person's start resets it


class Via(StrEnum):
    """How a worker came to its user."""

    WARM = "warm"  #: claimed from the pool
    COLD = "cold"  #: launched for this user


class Cause(StrEnum):
    """Why a start begins."""

    START = "start"  #: the owner wants a worker
    RESTART = "restart"  #: the owner wants a fresh one; the old one is fenced at once
    REPAIR = "repair"  #: maintenance found none alive; counts as a failure and obeys the backoff
    MOVE = "move"  #: its host is draining; a fresh one elsewhere, no failure


class Phase(StrEnum):
    """What a person sees."""

    STOPPED = "stopped"
    STARTING = "starting"  #: a start is under way, no worker holds the mark yet
    CONNECTING = "connecting"  #: the worker holds the mark and opens (or reopens) its session
    READY = "ready"
    DRAINING = "draining"  #: asked to stop, still letting go
    BACKING_OFF = "backing_off"  #: it failed; the next attempt has a time
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a worker must know to act for a user, and to restore it in a store that forgot."""

    user: str
    epoch: int
    via: Via
    cause: Cause
    issued_at_ms: int
    command_id: str
    credentials_ref: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """The lease under which a worker acts."""

    worker_id: str
    task_id: str
    epoch: int
    via: str
    version: str
    since_ms: int
    ready_at_ms: int | None
    issued_at_ms: int
    cause: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class StartLease:
    """Somebody is starting this epoch, until the lease runs out."""

    epoch: int
    task_id: str
    since_ms: int
    cause: str
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One line of a user's time line."""

    at_ms: int
    event: str
    epoch: int
    detail: str


@dataclass(frozen=True, slots=True)
class StartEntry:
    """One worker that became ready."""

    ready_at_ms: int
    epoch: int
    via: str
    cause: str
    issued_at_ms: int
    user: str

    @property
    def latency_ms(self) -> int:
        return start_latency_ms(self.cause, self.epoch, self.issued_at_ms, self.ready_at_ms)


def start_latency_ms(cause: str, epoch: int, issued_at_ms: int, ready_at_ms: int) -> int:
    """From the accepted command to ready. A repair or a move carries the moment of the owner's command, which
    may be days old; its epoch says when it began itself."""
    began = epoch if cause in (Cause.REPAIR, Cause.MOVE) else issued_at_ms
    return max(0, ready_at_ms - began)


@dataclass(frozen=True, slots=True)
class UserView:
    """Everything the store knows of one user at one moment of its own clock."""

    user: str
    now_ms: int
    epoch: int
    want: Want | None
    issued_at_ms: int
    command_id: str
    failures: int
    retry_at_ms: int
    task_id: str
    missing_since_ms: int | None
    reason: str
    mark: Mark | None
    lease: StartLease | None
    state: str
    history: tuple[HistoryEntry, ...] = ()
    held_epoch: int = 0  #: the last epoch whose mark was taken

    @property
    def live_mark(self) -> Mark | None:
        """The mark, if it is of the current epoch; an older one is a worker on its way out."""
        return self.mark if self.mark is not None and self.mark.epoch >= self.epoch else None

    @property
    def published(self) -> dict[str, Any]:
        """What the worker last said of itself; empty when it said nothing lately."""
        return dict(json.loads(self.state)) if self.state else {}

    @property
    def phase(self) -> Phase:
        return self.phase_by(self.published)

    def phase_by(self, published: Mapping[str, Any]) -> Phase:
        """For whoever has read `published` already."""
        if self.want is Want.FAILED:
            return Phase.FAILED
        if self.want is not Want.RUNNING:
            return Phase.DRAINING if self.mark else Phase.STOPPED
        if (mark := self.live_mark) is not None:
            if mark.ready_at_ms is None or published.get("phase") == Phase.CONNECTING:
                return Phase.CONNECTING
            return Phase.READY
        if self.lease is not None:
            return Phase.STARTING
        if self.retry_at_ms > self.now_ms:
            return Phase.BACKING_OFF
        return Phase.STARTING
