"""The two ports of a job backend. Their docstrings are the contract that every backend is tested against."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from muster.jobs.model import (
    VISIBILITY,
    Claims,
    Counts,
    Finished,
    Ids,
    Items,
    JobStatus,
    NewJob,
    Outcomes,
    PoolSettings,
    Turn,
    Verdict,
    WorkerFilter,
    WorkerRecord,
    WorkerRegistration,
    Workers,
    WorkerStatus,
    WorkItem,
)

_VISIBILITY = VISIBILITY.total_seconds()


class WorkPool(ABC):
    """One named queue of jobs. Every method is one atomic step, safe from any number of processes.

    A claim is named by (job id, token). Once the job was released, returned or finished, that token is
    dead: whatever its holder still sends is ignored, and a result sent with it is counted as late.
    """

    name: str

    @abstractmethod
    def push_many(self, jobs: Sequence[NewJob]) -> Ids:
        """Add jobs; their ids, in order. A `dedup` key already waiting or running gives the id it has.

        Ids rise with time, have a fixed width, and are never used twice in a pool.
        """

    @abstractmethod
    def turn(
        self,
        worker_id: str,
        finished: Sequence[Finished] = (),
        claim: int = 1,
        visibility: float = _VISIBILITY,
    ) -> Turn:
        """Hand in results and claim up to `claim` jobs, in one step.

        Highest priority first, then oldest. A result whose token is dead changes nothing but `late`.
        Each claim counts as an attempt and ends by itself after `visibility` seconds (see `extend`).
        """

    @abstractmethod
    def settle(
        self, claims: Sequence[tuple[str, int]], verdict: Verdict, error: str | None = None
    ) -> Outcomes:
        """End claims without a result; the new status of each job, or None where the token was dead."""

    @abstractmethod
    def release_by_worker(self, worker_id: str) -> int:
        """End every claim of a worker that is gone (release or poison); how many there were."""

    @abstractmethod
    def release_expired(self) -> int:
        """End every claim whose visibility is over (release or poison); how many there were."""

    @abstractmethod
    def extend(self, worker_id: str, visibility: float = _VISIBILITY) -> Claims:
        """Extend every claim the worker still holds, and say which ones these are."""

    @abstractmethod
    def report(
        self, item_id: str, token: int, progress: dict[str, Any] | None = None, checkpoint: Any = None
    ) -> bool:
        """Save progress and checkpoint (None leaves the old one); False when the token is dead."""

    @abstractmethod
    def cancel(self, item_id: str) -> JobStatus | None:
        """Cancel a pending job, or ask the holder of a claimed one to stop; a finished one stays as it is.

        The status after, or None when there is no such job.
        """

    @abstractmethod
    def requeue(self, item_id: str) -> bool:
        """Send a poisoned or cancelled job round again, with fresh attempts and its checkpoint kept."""

    @abstractmethod
    def get(self, item_id: str) -> WorkItem | None:
        """The whole job, or None."""

    @abstractmethod
    def list(self, status: JobStatus | None = None, *, limit: int = 50, before: str | None = None) -> Items:
        """Jobs, newest first; `before` is the id of the last job of the page before."""

    @abstractmethod
    def size(self) -> int:
        """Pending jobs, delayed ones included."""

    @abstractmethod
    def running(self) -> int:
        """Claimed jobs. This and `size` are cheap; `counts` may read the whole history."""

    @abstractmethod
    def counts(self) -> Counts:
        """Jobs per status."""

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Return when there may be something to claim, at the latest after `timeout` seconds."""

    @abstractmethod
    def trim(self, retention: float, poison_retention: float, keep: int) -> int:
        """Forget finished jobs older than their retention, and the oldest beyond `keep`; how many."""

    @abstractmethod
    def settings(self) -> PoolSettings:
        """What the owner decided; the defaults when nothing was."""

    @abstractmethod
    def configure(self, settings: PoolSettings) -> None:
        """Keep the owner's decisions for every process that uses the pool."""

    # The verbs below only give the steps above their usual names.

    def push(self, item: Any, **options: Any) -> str:
        """Add one job; `options` are the fields of `NewJob`."""
        return self.push_many([NewJob(item, **options)])[0]

    def claim(self, worker_id: str, visibility: float = _VISIBILITY) -> WorkItem | None:
        """Claim the next job, or None when nothing is due."""
        claimed = self.turn(worker_id, (), 1, visibility).claimed
        return claimed[0] if claimed else None

    def complete(self, item: WorkItem, result: Any = None) -> bool:
        """Hand in a result; False when the claim was already over."""
        return self.turn(item.claimed_by or "", [Finished(item.id, item.token, result)], 0).accepted[0]

    def fail(self, item: WorkItem, error: str | None = None) -> JobStatus | None:
        """The processor failed: retry after a backoff, or poison."""
        return self.settle([(item.id, item.token)], Verdict.FAIL, error)[0]

    def give_back(self, item: WorkItem) -> JobStatus | None:
        """The worker has to leave: the job is pending again and the attempt does not count."""
        return self.settle([(item.id, item.token)], Verdict.RETURN)[0]


class WorkBackend(Protocol):
    """A place where job pools live."""

    def pool(self, name: str) -> WorkPool:
        """The pool of that name. It exists as soon as somebody pushes into it."""
        ...

    def pools(self) -> Ids:
        """Every pool that has jobs or settings."""
        ...


class RegistrationBackend(Protocol):
    """Who is alive. A worker marked lost stays lost: only a new registration is a new life."""

    def register(self, worker: WorkerRegistration) -> WorkerRecord:
        """The worker is active from now on. Again is fine: it starts anew."""
        ...

    def join(self, worker: WorkerRegistration, total: int) -> bool:
        """As `register`, but only as one of at most `total` live workers of its pool; False when it is full.

        A place it still holds (reserved, or from a life before) is its own. One that was declared lost is
        refused: whatever it claimed now, the reaper might still release. One atomic step, because a worker
        that was thought gone may come back after its place was given away.
        """
        ...

    def reserve(self, pool: str, total: int, workers: Sequence[WorkerRegistration]) -> Ids:
        """Note as starting as many of `workers` as the pool lacks to have `total` live; their ids.

        One atomic step, so two checks at once cannot both fill the same gap.
        """
        ...

    def heartbeat(self, worker_id: str, metadata: dict[str, Any] | None = None) -> WorkerStatus:
        """I am alive. The status on record; LOST (and nothing changed) when reaped or unknown."""
        ...

    def update_status(self, worker_id: str, status: WorkerStatus) -> bool:
        """Set the status; False (and nothing changed) when the worker is lost or unknown.

        Nor is one terminating that has already left: its place may be somebody else's by now.
        """
        ...

    def lose(self, worker_id: str, last_heartbeat: float) -> bool:
        """Mark as lost, unless it has beaten since `last_heartbeat` was read or is not live."""
        ...

    def get(self, worker_id: str) -> WorkerRecord | None:
        """One worker, or None."""
        ...

    def list(self, filter: WorkerFilter | None = None) -> Workers:
        """The workers the filter admits, oldest first."""
        ...

    def forget(self, older_than: float) -> int:
        """Drop records of workers that left or were lost more than `older_than` seconds ago; how many."""
        ...


@dataclass(frozen=True, slots=True)
class Jobs:
    """One connection: the work and the workers."""

    work: WorkBackend
    registration: RegistrationBackend
    url: str
