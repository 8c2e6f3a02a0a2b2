"""The auditor of the record: it sees every atomic step with its answer, and what the job hash said before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from muster.jobs.model import FINISHED, JobStatus, WorkItem

if TYPE_CHECKING:
    from sim.jobs.world import JobWorld

PENDING, CLAIMED, DONE, POISONED, CANCELLED = JobStatus

#: Which step may take a job from where to where. A first push comes from nowhere.
_MOVES: dict[str, set[tuple[JobStatus | None, JobStatus]]] = {
    "push": {(None, PENDING)},
    "turn": {(CLAIMED, DONE), (PENDING, CLAIMED), (PENDING, PENDING)},
    "settle": {(CLAIMED, PENDING), (CLAIMED, POISONED), (CLAIMED, CANCELLED)},
    "cancel": {(PENDING, CANCELLED), (CLAIMED, CLAIMED)},
    "requeue": {(POISONED, PENDING), (CANCELLED, PENDING)},
}


@dataclass(slots=True)
class Seen:
    """A job as the auditor last saw it."""

    raw: Any
    item: WorkItem
    counted: int = 0  #: attempts since the last requeue that ended without a result and count
    until_ms: int = 0  #: its claim was promised to live until then
    checkpoint: str = ""  #: the last one that was acknowledged


class Record:
    """No job lost, none done twice, one live claim, retries bounded, cancels kept, late results counted."""

    def __init__(self, world: JobWorld) -> None:
        self._world = world
        self._pool = world.pool_of(world.clock)
        self._keys = self._pool._keys
        self.jobs: dict[str, Seen] = {}
        self.late = 0
        self._checks = {
            "push": self._push, "turn": self._turn, "settle": self._settle, "extend": self._extend,
            "report": self._report, "cancel": self._nothing, "requeue": self._nothing, "trim": self._nothing,
        }  # fmt: skip

    @property
    def open(self) -> list[WorkItem]:
        return [seen.item for seen in self.jobs.values() if seen.item.status not in FINISHED]

    def step(self, name: str, args: Sequence[Any], reply: Any) -> None:
        """After one atomic step on the pool."""
        check = self._checks.get(name)
        if check is None:
            return
        before = self._look(name)
        check(args, reply, before)
        if name != "report":
            self._in_its_place()

    def forget(self) -> None:
        """The store lost acknowledged writes: what it has now is the record, and the promises start anew."""
        record = self._peek("job") or {}
        self.jobs = {}
        for job_id in (i for i in record if ":" not in i):
            item = self._read(job_id, record)
            self.jobs[job_id] = Seen(
                record[job_id],
                item,
                counted=item.attempts - (item.status is CLAIMED),
                until_ms=int((self._peek("claimed") or {}).get(job_id, 0)),
                checkpoint=record.get(f"{job_id}:c", ""),
            )
        self.late = int((self._peek("stats") or {}).get("late", 0))

    def _peek(self, part: str) -> Any:
        return self._world.store_world.backend.peek(self._keys[part])

    def _read(self, job_id: str, record: Any) -> WorkItem:
        return self._pool._item(job_id, record[job_id], record[f"{job_id}:b"])

    def _broken(self, promise: str, what: str) -> None:
        self._world.violate(promise, what)

    def _look(self, name: str) -> dict[str, Seen]:
        """Notice what changed; answers what the changed jobs were before."""
        record = self._peek("job") or {}
        before: dict[str, Seen] = {}
        for job_id, seen in self.jobs.items():
            raw = record.get(job_id)
            if raw == seen.raw:
                continue
            if raw is None:
                self._broken("no job lost", f"{name} made job {job_id} ({seen.item.status}) vanish")
                continue
            item = self._read(job_id, record)
            before[job_id] = seen
            self.jobs[job_id] = Seen(raw, item, seen.counted, seen.until_ms, seen.checkpoint)
            self._moved(name, job_id, seen.item, item)
        return before

    def _moved(self, name: str, job_id: str, old: WorkItem, new: WorkItem) -> None:
        if (old.status, new.status) in _MOVES.get(name, ()):
            return
        what = f"{name} took job {job_id} from {old.status} to {new.status}"
        if old.status is DONE:
            self._broken("done once", what)
        elif old.status is CANCELLED:
            self._broken("cancelled stays cancelled", what)
        elif new.status is CLAIMED:
            self._broken("one live claim", what)
        else:
            self._broken("every change has a reason", what)

    def _push(self, args: Sequence[Any], reply: Any, before: dict[str, Seen]) -> None:
        record = self._peek("job")
        for number, job_id in enumerate(reply):
            dedup = args[1 + 5 * number] or None
            if job_id not in self.jobs:
                item = self._read(job_id, record)
                if item.status is not PENDING or item.dedup != dedup:
                    self._broken("no job lost", f"job {job_id} was pushed and is {item.status}")
                twins = [job.id for job in self.open if dedup and job.dedup == dedup]
                if twins:
                    self._broken(
                        "one open job per dedup key", f"{dedup}: {job_id} was made beside {twins[0]}"
                    )
                self.jobs[job_id] = Seen(record[job_id], item)
            else:
                item = self.jobs[job_id].item
                if dedup is None or item.dedup != dedup or item.status in FINISHED:
                    self._broken("no job lost", f"a push was answered with job {job_id} ({item.status})")
        if before:
            self._broken("every change has a reason", f"a push changed {sorted(before)}")

    def _turn(self, args: Sequence[Any], reply: Any, before: dict[str, Seen]) -> None:
        now_ms, until_ms, count = int(args[1]), int(args[2]), (len(args) - 5) // 3
        accepted, flat = reply
        handed: set[str] = set()
        for number in range(count):
            job_id, token = args[5 + 3 * number], int(args[6 + 3 * number])
            old = (before.get(job_id) or self.jobs[job_id]).item if job_id in self.jobs else None
            alive = old is not None and old.status is CLAIMED and old.token == token and job_id not in handed
            handed.add(job_id)
            self.late += not alive
            if accepted[number] and not alive:
                state = f"{old.status}, token {old.token}" if old else "unknown"
                self._broken("late results are ignored", f"job {job_id} ({state}) took token {token}")
            if alive and not accepted[number]:
                self._broken("good results are taken", f"job {job_id} refused its live token {token}")
        claimed = [str(flat[i]) for i in range(0, len(flat), 4)]
        for number, job_id in enumerate(claimed):
            self._claimed(job_id, before, now_ms, until_ms, flat[4 * number + 3])
        if claimed:
            worst = max((-self.jobs[i].item.priority, i) for i in claimed)
            for job in self.open:
                if job.status is PENDING and job.run_at is None and (-job.priority, job.id) < worst:
                    self._broken("the best job first", f"{worst[1]} was claimed before {job.id}")

    def _claimed(self, job_id: str, before: dict[str, Seen], now_ms: int, until_ms: int, handed: Any) -> None:
        seen = self.jobs[job_id]
        old, new = (before.get(job_id) or seen).item, seen.item
        if old.status is not PENDING or new.token <= old.token:
            self._broken(
                "one live claim",
                f"{new.claimed_by} claimed job {job_id}, {old.status} by {old.claimed_by} "
                f"(token {old.token}, then {new.token})",
            )
        if old.run_at is not None and old.run_at * 1000 > now_ms:
            self._broken(
                "not before its time", f"job {job_id} was claimed {old.run_at * 1000 - now_ms} ms early"
            )
        if old.cancel_requested:
            self._broken("cancelled stays cancelled", f"job {job_id} was claimed after its cancel")
        if new.attempts != seen.counted + 1 or new.attempts > new.max_retries:
            self._broken(
                "retries are bounded",
                f"job {job_id}: {seen.counted} attempts have failed, this one is called {new.attempts} "
                f"of {new.max_retries}",
            )
        if (handed or "") != seen.checkpoint:
            self._broken("checkpoints are kept", f"job {job_id}: {seen.checkpoint} became {handed}")
        seen.until_ms = until_ms

    def _settle(self, args: Sequence[Any], reply: Any, before: dict[str, Seen]) -> None:  # noqa: ARG002
        by, verdict, now_ms, worker = args[0], args[1], int(args[2]), args[6]
        named = (
            {(str(args[i]), int(args[i + 1])) for i in range(7, len(args), 2)} if by == "claims" else set()
        )
        for job_id, seen in before.items():
            old, new = seen.item, self.jobs[job_id].item
            if by == "claims" and (job_id, old.token) not in named:
                self._broken("only the holder settles", f"job {job_id} token {old.token}: named were {named}")
            if by == "worker" and old.claimed_by != worker:
                self._broken(
                    "only the holder settles", f"{worker}'s end took {old.claimed_by}'s job {job_id}"
                )
            by_itself = any(
                c.worker_id == worker and c.parent is self._world.loop.actor for c in self._world.containers
            )
            if by == "worker" and not by_itself and self._world.fleet.status(worker) != "lost":
                self._broken("a live worker keeps its claims", f"{worker} is not lost, and lost job {job_id}")
            if by == "expired" and seen.until_ms > now_ms:
                self._broken(
                    "an extended claim lives on",
                    f"job {job_id} of {old.claimed_by} was released {seen.until_ms - now_ms} ms early",
                )
            counts = verdict != "return"
            self.jobs[job_id].counted += counts
            if old.cancel_requested and new.status is not CANCELLED:
                self._broken("cancelled stays cancelled", f"job {job_id} is {new.status} after its cancel")
            if new.status is POISONED and seen.counted + counts < old.max_retries:
                self._broken(
                    "every attempt is granted", f"job {job_id} was poisoned after {seen.counted + 1}"
                )
        for job_id, token in sorted(named):
            left = self.jobs.get(job_id)
            if left and job_id not in before and left.item.status is CLAIMED and left.item.token == token:
                self._broken("the holder is heard", f"job {job_id} is still claimed with token {token}")

    def _extend(self, args: Sequence[Any], reply: Any, before: dict[str, Seen]) -> None:  # noqa: ARG002
        worker, until_ms = args[0], int(args[1])
        told = {str(reply[i]): int(reply[i + 1]) for i in range(0, len(reply), 3)}
        held = {
            i: seen.item.token
            for i, seen in self.jobs.items()
            if seen.item.status is CLAIMED and seen.item.claimed_by == worker
        }
        if told != held:
            self._broken("one live claim", f"{worker} holds {held} and was told {told}")
        for job_id in told:
            self.jobs[job_id].until_ms = until_ms

    def _report(self, args: Sequence[Any], reply: Any, before: dict[str, Seen]) -> None:  # noqa: ARG002
        seen, token = self.jobs.get(str(args[0])), int(args[1])
        alive = seen is not None and seen.item.status is CLAIMED and seen.item.token == token
        if (reply[0] == "saved") != alive:
            self._broken("late results are ignored", f"a report on job {args[0]} was {reply[0]}")
        if seen is not None and reply[0] == "saved" and args[3]:
            seen.checkpoint = args[3]

    def _nothing(self, args: Sequence[Any], reply: Any, before: dict[str, Seen]) -> None:  # noqa: ARG002
        for job_id, seen in before.items():
            if seen.item.status in (POISONED, CANCELLED):
                self.jobs[job_id].counted = 0

    def _in_its_place(self) -> None:
        """Every job is where its status says, exactly once; and what is counted is what there is."""
        ready, delayed = self._peek("ready") or {}, self._peek("delayed") or {}
        claimed, poisoned = self._peek("claimed") or {}, self._peek("poisoned") or {}
        placed = len(ready) + len(delayed) + len(claimed) + len(poisoned)
        done = cancelled = 0
        for job_id, seen in self.jobs.items():
            match seen.item.status:
                case JobStatus.PENDING:
                    good = (job_id in ready) != (job_id in delayed)
                case JobStatus.CLAIMED:
                    good = job_id in claimed
                case JobStatus.POISONED:
                    good = job_id in poisoned
                case JobStatus.DONE:
                    done += 1
                    good, placed = True, placed + 1
                case _:
                    cancelled += 1
                    good, placed = True, placed + 1
            if not good:
                self._broken("no job lost", f"job {job_id} is {seen.item.status}, and nobody would find it")
        if placed != len(self.jobs):
            self._broken("no job lost", f"{len(self.jobs)} jobs have {placed} places")
        stats = self._peek("stats") or {}
        ended, late = (int(stats.get(name, 0)) for name in ("cancelled", "late"))
        # What is done is not counted but follows: all the ids, less those that are anywhere else.
        elsewhere = sum(len(self._peek(part) or ()) for part in ("ready", "delayed", "claimed", "poisoned"))
        counts = (len(self._peek("ids") or ()) - elsewhere - ended, ended, late)
        if counts != (done, cancelled, self.late):
            self._broken(
                "every end is counted", f"counted {counts}, there are {(done, cancelled, self.late)}"
            )
