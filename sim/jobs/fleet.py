"""The auditor of the workers: how many there are, who may be declared lost, that none stays for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from muster.jobs import valkey_workers
from muster.jobs.model import LIVE, JobStatus
from sim.jobs.plan import HEARTBEAT_S, IDLE_EXIT_S, SKEW_S, STALE_S

if TYPE_CHECKING:
    from sim.jobs.processes import Container
    from sim.jobs.world import JobWorld

#: A worker that is not counted any more hears of it with its next beat; leaving may need some tries.
LEAVE_S = HEARTBEAT_S + 2 * HEARTBEAT_S + 5.0
#: From the last open job to the exit of the last worker: its idle grace, a last claim, its farewell.
IDLE_S = IDLE_EXIT_S + 2 * HEARTBEAT_S + 5.0
#: Between two jobs, or two children, a worker's hands are empty for less than this.
WORK_S = 3.5
#: A job that nobody is coming for is a gap if it lasts longer than a check takes.
GAP_S = 12.0


class Fleet:
    """Live workers within the maximum, none without work, none forgotten, and no job without one."""

    def __init__(self, world: JobWorld) -> None:
        self._world = world
        self._beats: dict[str, float] = {}
        self._uncounted: dict[str, float] = {}
        self._untouched: dict[tuple[str, int], float] = {}
        self._nothing_to_do_since: float | None = None
        self._alone_since: float | None = None

    def status(self, worker_id: str) -> str:
        """What the registry says of a worker."""
        return str((self._peek(valkey_workers._STATUS) or {}).get(worker_id, ""))

    @property
    def live(self) -> list[str]:
        """The workers that the registry counts."""
        return [w for w, status in (self._peek(valkey_workers._STATUS) or {}).items() if status in LIVE]

    def step(self, name: str, args: Sequence[Any], reply: Any) -> None:
        """After one atomic step on the registry."""
        match name:
            case "register":
                for worker_id in reply:
                    self._beats[worker_id] = float(args[1])
            case "beat" if reply[0] != "lost":
                self._beats[args[0]] = float(args[1])
            case "status" if args[1] == "lost" and reply[0] == "set":
                self._declared_lost(args[0])
            case _:
                pass
        if name in ("register", "status"):
            live = self.live
            if len(live) > self._world.plan.max_workers:
                self._world.violate(
                    "live workers within the maximum",
                    f"{len(live)} of {self._world.plan.max_workers}: {', '.join(sorted(live))}",
                )

    def forget(self) -> None:
        """The store lost acknowledged writes: who was registered meanwhile is not counted any more."""
        beats = self._peek(valkey_workers._BEAT) or {}
        self._beats = {worker: float(at) for worker, at in beats.items()}

    def tick(self) -> None:
        """Every few seconds."""
        world, now = self._world, self._world.loop.now
        if world.record.open:
            self._nothing_to_do_since = None
        elif self._nothing_to_do_since is None:
            self._nothing_to_do_since = now
        living = [container for container in world.containers if container.living]
        for container in living:
            self._look_at(container, now)
        self._uncounted = {
            c.worker_id: since for c in living if (since := self._uncounted.get(c.worker_id)) is not None
        }
        self._gap(now)
        for worker_id, at in world.launcher.failed.items():
            if now - at > HEARTBEAT_S and at >= world.disturbed_at and self.status(worker_id) in LIVE:
                world.violate("a failed launch frees its place", f"{worker_id} still counts")

    def _peek(self, key: str) -> Any:
        return self._world.store_world.backend.peek(key)

    def _declared_lost(self, worker_id: str) -> None:
        silent = self._world.loop.now - self._beats.get(worker_id, 0.0)
        if silent < STALE_S - 2 * SKEW_S:
            self._world.violate(
                "only the silent are lost", f"{worker_id} was declared lost {silent:.3f} s after its beat"
            )

    def _look_at(self, container: Container, now: float) -> None:
        world = self._world
        free_since = max(
            container.booted_at, world.store_trouble_until, *(p.troubled_until for p in container.living)
        )
        status = self.status(container.worker_id)
        # It had said goodbye, claimed once more and come back; the store forgot that it came back.
        forgotten = bool(world.store_world.lost) and status == "terminated"
        if status in LIVE or free_since > now or forgotten:
            self._uncounted.pop(container.worker_id, None)
        else:
            since = max(self._uncounted.setdefault(container.worker_id, now), free_since)
            if now - since > LEAVE_S:
                world.violate(
                    "who is not counted leaves",
                    f"{container.worker_id} is {status} and still there {now - since:.1f} s later",
                )
        self._works(container, free_since, now)
        if self._nothing_to_do_since is not None:
            since = max(self._nothing_to_do_since, free_since)
            if now - since > IDLE_S:
                world.violate(
                    "no workers without work",
                    f"{container.worker_id} has had nothing to do for {now - since:.1f} s",
                )

    def _works(self, container: Container, free_since: float, now: float) -> None:
        """A worker that holds a claim is on it, or on another of its batch; else the job would wait.

        After lost writes it may hold one that it has finished, until it leaves.
        """
        world = self._world
        busy = container.slot is not None and container.slot.current is not None
        for job in world.record.open:
            if job.claimed_by != container.worker_id:
                continue
            claim = (job.id, job.token)
            if busy or free_since > now or world.store_world.lost:
                self._untouched.pop(claim, None)
            elif now - max(free_since, self._untouched.setdefault(claim, now)) > WORK_S:
                world.violate(
                    "who holds a job works on it", f"{container.worker_id} has job {job.id} and does nothing"
                )

    def _gap(self, now: float) -> None:
        """A job that was pushed in peace, is due, and nobody has been launched for it."""
        world = self._world
        waiting = [
            job
            for job in world.record.open
            if job.status is JobStatus.PENDING
            and job.run_at is None
            and job.attempts == 0
            and job.id not in world.delayed
            and job.created_at - 1.0 > world.disturbed_at
        ]
        if not waiting or self.live or world.people_at_work:
            self._alone_since = None
            return
        if self._alone_since is None:
            self._alone_since = now
        if now - self._alone_since > GAP_S:
            world.violate(
                "a job in peace has a worker coming", f"job {waiting[0].id} waits, and no worker is launched"
            )
