"""One history of a job pool: store, launcher, workers, people and the schedule, with auditors and a trace."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

from muster import store as core_store
from muster.clock import Clock
from muster.errors import Refused, TryLater
from muster.jobs import Jobs, NewJob, PoolSettings, service, valkey
from muster.jobs.capacity import check
from muster.jobs.valkey_workers import ValkeyRegistration
from sim.jobs.faults import heal, strike
from sim.jobs.fleet import Fleet
from sim.jobs.launcher import Launcher
from sim.jobs.plan import SKEW_S, STALE_S, JobPlan, Plan, Wish
from sim.jobs.processes import Container, HostClock, Process, enter, expected
from sim.jobs.record import Record
from sim.jobs.store import JobClient
from sim.loop import Actor, Killed, Loop
from sim.plan import START, Fault
from sim.store_world import Backend, StoreWorld
from sim.world import Violation

#: How long the pool may take to be done and empty: a launch that never comes is given 5 minutes, twice.
SETTLE_S = 2400.0
#: Once it is, one more check comes, and this much later nothing must have happened.
QUIET_S = 10.0
TICK_S = 4.0
#: A person whose push was refused tries again this often.
TRIES = 3


class JobWorld:
    """A plan on its way to being history."""

    pool_name = "p"
    skew = SKEW_S

    def __init__(self, plan: Plan, *, keep_trace: bool = False, backend: Backend | None = None) -> None:
        self.plan = plan
        self.rng = Random(f"job-weather-{plan.seed}")
        self.loop: Loop = Loop(START)
        self.clock = HostClock(self.loop)
        self.lines: list[str] | None = [] if keep_trace else None
        self._hash = blake2b(digest_size=16)
        self.faults: Counter[str] = Counter()
        self.violation: Violation | None = None
        self.armed: list[list[Any]] = []
        self.squeezes: list[Fault] = []
        self.pages: list[bytearray] = []
        self.containers: list[Container] = []
        self.disturbed_at = 0.0
        self.store_trouble_until = 0.0
        self.people_at_work = 0
        self.delayed: set[str] = set()
        self.known: list[str] = []  #: the ids that people were given
        self._numbers = itertools.count(1)
        self.store_world: Any = StoreWorld(self, lossy=plan.lossy, backend=backend)  # type: ignore[arg-type]
        self.store_world.on_lost = self._lost_writes
        self.client = JobClient(self.store_world)
        self.store = core_store.Store(self.client)
        self.script_names = _script_names()
        self.launcher: Launcher = Launcher(self)
        self.record = Record(self)
        self.fleet = Fleet(self)

    def run(self) -> None:
        """Live through the plan, heal, settle, be quiet, and be judged."""
        enter(self)
        loop, plan = self.loop, self.plan
        self._as(Process(self, "owner", "owner", self.clock), self._configure)
        for wish in plan.wishes:
            loop.after(wish.at + 1.0, partial(self.grant, wish))
        for fault in plan.faults:
            loop.after(fault.at + 1.0, partial(strike, self, fault))
        loop.after(plan.check_every, self._schedule)
        loop.after(TICK_S, self._tick)
        try:
            loop.run_until(START + 1.0 + plan.duration, stop=self._failed)
            heal(self)
            healed_at = loop.now
            while not self._failed() and loop.now < healed_at + SETTLE_S and self.gap():
                loop.run_until(loop.now + 20.0, stop=self._failed)
            launched = len(self.containers)
            loop.run_until(loop.now + plan.check_every + QUIET_S, stop=self._failed)
            if gap := self.gap():
                self.violate("every job ends, and every worker", gap)
            elif len(self.containers) > launched:
                self.violate("no workers without work", "one was launched for a pool that had nothing to do")
        finally:
            for container in self.containers:
                container.over = True
                for process in container.living:
                    loop.kill(process)

    def gap(self) -> str:
        """Empty when all is done and everybody gone; else the first thing that is not."""
        if self.people_at_work:
            return "somebody is still at it"
        if jobs := self.record.open:
            return f"job {jobs[0].id} is {jobs[0].status} ({len(self.fleet.live)} workers are live)"
        for container in self.containers:
            if not container.over:
                return f"worker {container.worker_id} has not ended"
        if live := self.fleet.live:
            return f"worker {live[0]} is gone, and {self.fleet.status(live[0])} in the registry"
        return ""

    def _failed(self) -> bool:
        return self.violation is not None

    def violate(self, promise: str, what: str) -> None:
        if self.violation is None:
            self.violation = Violation(promise, self.loop.now - START, what)
            self.trace("VIOLATION", promise, what)

    def surprised(self, who: str, error: Exception) -> None:
        """A process or thread ended with an exception."""
        self.trace(who, "failed", type(error).__name__)
        if not expected(error):
            self.violate("no surprise", f"{who}: {error!r}")

    def trace(self, *words: str) -> None:
        line = f"{self.loop.now - START:.6f} {' '.join(words)}"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def disturb(self, seconds: float = 0.0) -> None:
        """A fault is felt for so long: what happens until then may have to wait for the slow schedule."""
        self.disturbed_at = max(self.disturbed_at, self.loop.now + seconds)

    def jobs_for(self, clock: Clock) -> Jobs:
        """A connection of whoever has this clock."""
        return Jobs(valkey.ValkeyWork(self.store, clock), ValkeyRegistration(self.store, clock), "sim:")

    def pool_of(self, clock: Clock) -> valkey.ValkeyPool:
        return valkey.ValkeyWork(self.store, clock).pool(self.pool_name)

    def effect(
        self,
        service: str,
        name: str,
        do: Callable[[], Any],
        *,
        reach: Callable[[], None] = lambda: None,
        lost: Callable[[], Exception] = lambda: TryLater("no answer"),
    ) -> Any:
        """One effect of the running process on the outside: here it can crash, wait or be lied to."""
        process: Any = self.loop.actor
        if process.dead:
            raise Killed
        mode, amount = self._struck(process) if self.armed else ("", 0.0)
        if self.squeezes and process.kind == "child":
            self._squeeze(process, name)
        if mode == "crash_before":
            self._crash(process)
        if mode == "pause":
            process.hold_up(amount)
            self.loop.sleep(amount)
        self.loop.sleep(self.latency())
        reach()
        if mode == "lost":
            raise lost()
        answer = do()
        self.trace(process.name, service, name, mode)
        if mode == "crash_after":
            self._crash(process)
        if mode == "stall":
            process.freeze(amount)
        self.loop.sleep(self.latency())
        if mode == "answer_lost":
            raise lost()
        return answer

    def latency(self) -> float:
        draw = self.rng.random()
        return 0.0005 + draw * 0.003 if draw < 0.97 else (draw - 0.97) * 40.0

    def _struck(self, actor: Actor) -> tuple[str, float]:
        for entry in self.armed:
            fault: Fault = entry[0]
            if fault.target == actor.kind:
                if entry[1] > 0:
                    entry[1] -= 1
                    continue
                self.armed.remove(entry)
                self.disturb(fault.amount)
                return fault.kind, fault.amount
        return "", 0.0

    def _squeeze(self, child: Process, name: str) -> None:
        """A push in the exact window in which a worker leaves; no fault, only bad luck."""
        if name not in ("status", "turn") or (name == "turn" and not child.leaving):
            return
        child.leaving = name == "status"
        for fault in self.squeezes:
            if fault.target == name:
                self.squeezes.remove(fault)
                self.loop.after(0.0, partial(self.grant, Wish(0.0, "push", (JobPlan(0.5),))))
                child.hold_up(fault.amount)
                self.loop.sleep(fault.amount)
                return

    def _crash(self, process: Process) -> None:
        self.trace(process.name, "crashed")
        container = process.container
        if container is None:
            self.loop.kill(process)
        elif process.kind == "parent":
            container.exited(1)
        else:
            assert container.child is not None
            container.child.ended(1)
        raise Killed

    def audit_script(self, words: tuple[Any, ...], reply: Any) -> None:
        name, args = self.script_names[words[1]], words[3 + words[2] :]
        self.record.step(name, args, reply)
        self.fleet.step(name, args, reply)
        if name in ("push", "settle", "requeue"):
            self.client.wake(words[3 : 3 + words[2]])

    def audit(self, hook: str, *what: Any) -> None:
        """The store's sweeps are not of this world."""

    def _lost_writes(self) -> None:
        """The store has failed over and forgot the last moments."""
        self.record.forget()
        self.fleet.forget()

    def _tick(self) -> None:
        store = self.store_world
        self.store_trouble_until = max(self.store_trouble_until, store.away_until, store.slow_until)
        self.fleet.tick()
        self.loop.after(TICK_S, self._tick)

    def _as(self, process: Process, body: Callable[[], None]) -> None:
        person = process.kind == "person"
        self.people_at_work += person

        def run() -> None:
            try:
                body()
            except (TryLater, Refused) as refused:
                self.trace(process.name, "was told", type(refused).__name__)
            except Exception as error:  # noqa: BLE001 - judged by the next line
                self.surprised(process.name, error)
            finally:
                self.people_at_work -= person

        process.spawn(run)

    def _configure(self) -> None:
        self.pool_of(self.clock).configure(PoolSettings(self.plan.max_workers))

    def _somebody(self, kind: str) -> Process:
        skew = self.rng.uniform(-1, 1) * self.skew if self.rng.random() < 0.3 else 0.0
        return Process(self, f"{kind}-{next(self._numbers)}", kind, HostClock(self.loop, skew=skew))

    def _schedule(self) -> None:
        process = self._somebody("schedule")
        jobs = self.jobs_for(process.clock)
        self._as(process, lambda: self._check(jobs, process, trim=True))
        self.loop.after(self.plan.check_every, self._schedule)

    def _check(self, jobs: Jobs, process: Process, *, trim: bool) -> None:
        check(jobs, self.pool_name, self.launcher, process.clock, STALE_S, trim=trim)

    def new_id(self) -> SimpleNamespace:
        """In the place of a random one."""
        return SimpleNamespace(hex=f"{next(self._numbers):012d}")

    def grant(self, wish: Wish) -> None:
        """A person does what they wish."""
        process = self._somebody("person")
        self.trace(process.name, str(wish))
        self._as(process, partial(self._do, wish, process))

    def _do(self, wish: Wish, process: Process) -> None:
        jobs, pool = self.jobs_for(process.clock), self.pool_name
        added = lambda name: self._check(jobs, process, trim=False)  # noqa: E731, ARG005
        target = self.known[-1 - wish.target % len(self.known)] if self.known else ""
        match wish.action:
            case "push":
                self._push(jobs, [_new(job) for job in wish.jobs], added, process)
            case "redrive":
                service.redrive(jobs, pool, added)
            case "check":
                self._check(jobs, process, trim=True)
            case "cancel" if target:
                service.cancel(jobs, pool, target)
            case "resume" if target:
                service.resume(jobs, pool, target, added)
            case "rerun" if target:
                self.known.append(service.rerun(jobs, pool, target, added))

    def _push(self, jobs: Jobs, new: list[NewJob], added: Callable[[str], None], process: Process) -> None:
        """Try a few times; without a dedup key that may push twice, which is the person's own choice."""
        for _ in range(TRIES):
            try:
                ids = service.enqueue(jobs, self.pool_name, new, added)
            except TryLater:
                process.clock.sleep(2.0)
                continue
            self.known += ids
            self.delayed |= {job_id for job_id, job in zip(ids, new, strict=True) if job.delay}
            if not self.plan.lossy and any(job_id not in self.record.jobs for job_id in ids):
                self.violate("no job lost", f"{ids} were acknowledged")
            return


def _new(job: JobPlan) -> NewJob:
    data = {
        "seconds": job.seconds,
        "steps": job.steps,
        "trouble": job.trouble,
        "bad_attempts": job.bad_attempts,
    }
    return NewJob(
        data,
        kind="sim",
        priority=job.priority,
        delay=job.delay,
        dedup=job.dedup,
        max_retries=job.max_retries,
    )


def _script_names() -> dict[str, str]:
    """sha -> name: what the trace calls a step, and what the auditors are told of."""
    folder = Path(valkey.__file__).parent / "lua"
    return {core_store._source(path)[1]: path.stem for path in folder.glob("[a-z]*.lua")}
