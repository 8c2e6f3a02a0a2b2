"""The launcher port: how the core starts, stops and looks at tasks, whatever runs them.

Three launchers keep this contract (`ecs`, `process`, `fake`) and one contract test holds them to it.
A launcher starts tasks; it does not know who may act. Two tasks for one user are harmless to it: the
mark and its epoch decide, so a launcher only has to be honest and idempotent, never clever.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Protocol

from muster.errors import TryLater

#: A stopped task can be described at least this long, then it is missing (the promise ECS makes).
STOPPED_VISIBLE = timedelta(hours=1)


class TaskKind(StrEnum):
    """What a task is started for."""

    USER = "user"  #: a cold start: the worker knows its user from the beginning
    POOL = "pool"  #: a warm worker that waits for a claim
    JOB = "job"  #: a worker of a job pool; exits when its queue stays empty


class TaskStatus(StrEnum):
    """What a launcher knows about a task. RUNNING is not proof of life: only a mark is."""

    PENDING = "pending"  #: accepted, not running yet; may wait long for capacity
    RUNNING = "running"  #: its process may act, also while it is being stopped
    STOPPED = "stopped"  #: ended; visible for `STOPPED_VISIBLE`
    MISSING = "missing"  #: never existed, or ended so long ago that nobody remembers
    UNKNOWN = "unknown"  #: we could not ask (throttled, unreachable); never a reason to act


class NewAttempt(TryLater):
    """This token is used up: the service would only repeat its old answer. Use `attempt + 1`."""


class TaskDied(NewAttempt):
    """The task of this token has already ended."""

    def __init__(self, dead_task: str, why: str | None = None) -> None:
        super().__init__(
            f"task {dead_task} of this launch has already ended ({why or 'no reason given'}); "
            "launch again with attempt + 1"
        )
        self.dead_task = dead_task


@dataclass(frozen=True, slots=True)
class Launch:
    """What to run. Equal launches (by `token`) are one task, however often they are asked for."""

    kind: TaskKind
    owner: str  #: user id, pool name or job pool name
    epoch: int = 0  #: fencing number of a user start; 0 for pool and job workers
    attempt: int = 0  #: raised after `NewAttempt`
    launch_id: str = ""  #: pool and job launches: the reservation this launch fills
    env: Mapping[str, str] = field(default_factory=dict, hash=False)  #: extra, without secrets
    image: str | None = None  #: pinned task definition (jobs); a local process has only one

    @property
    def token(self) -> str:
        """The idempotency token: 64 hex digits, all that an ECS clientToken takes.

        A JSON list, because owners may contain any separator one could choose.
        """
        parts = [self.kind.value, self.owner, self.epoch, self.attempt, self.launch_id]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def identity(launch: Launch) -> dict[str, str]:
    """The environment every launcher gives a worker: `launch.env`, and who the worker is (which wins)."""
    who = {"MUSTER_KIND": launch.kind.value}
    if launch.kind is TaskKind.USER:
        who |= {"MUSTER_USER": launch.owner, "MUSTER_EPOCH": str(launch.epoch)}
    else:
        who |= {"MUSTER_POOL": launch.owner, "MUSTER_LAUNCH_ID": launch.launch_id}
    return {**launch.env, **who}


@dataclass(frozen=True, slots=True)
class TaskView:
    """One task as its launcher sees it now. Times are seconds since 1970."""

    task_id: str
    status: TaskStatus
    started_at: float | None = None  #: when it began to run; while pending, when it was created
    stopped_reason: str | None = None
    exit_code: int | None = None  #: 128 + n when signal n ended it; None when nobody could see it
    owner: str | None = None
    kind: TaskKind | None = None
    epoch: int | None = None


class Launcher(Protocol):
    """Starts, stops and describes tasks. Safe to call from many threads."""

    def run(self, launch: Launch) -> str:
        """Start the task of `launch` and return its id, without waiting until it runs.

        Idempotent per token: the same token returns the same task, also after a crash of the caller
        or a lost answer, so a caller that is not sure simply asks again. Raises `NewAttempt` when this
        token can start nothing any more (its task has ended, or the service said that it failed),
        other `TryLater` when the same launch may work later (throttle, no capacity, unreachable; a
        task may exist all the same), `Refused` when it can never work.
        """
        ...

    def stop(self, task_id: str, reason: str) -> None:
        """Ask a task to end: SIGTERM, the grace, SIGKILL. Returns at once.

        An unknown or stopped task is no error. Raises `TryLater` when nobody could be asked.
        """
        ...

    def describe(self, task_ids: Sequence[str]) -> dict[str, TaskView]:
        """A view of every id asked for; what could not be asked is UNKNOWN.

        Raises `Refused` when this launcher may never ask (a wrong role or cluster).
        """
        ...

    def tasks(self) -> Iterator[str]:
        """Ids of everything this launcher started that may still run; may be stale both ways.

        Raises `TryLater` when the list cannot be completed: half a list would look like lost tasks.
        """
        ...
