"""One history: all worlds together, the auditors that watch them, and the trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Any

from lambdas import wiring
from muster import keys
from muster import store as core_store
from muster.blueprint import (
    ORDER_TASKS,
    ORDER_TASKS_DLQ,
    POOL_CLAIM,
    WORKER_CONTROL,
    WORKER_CONTROL_DLQ,
)
from muster.budget import CallBudget, Priority
from muster.claims import SqsChannel, ValkeyChannel
from muster.deps import Deps
from muster.errors import TryLater
from muster.launchers import ecs as ecs_launcher
from muster.model import Assignment
from muster.queues import SqsCommands
from muster.settings import Settings
from sim import threads
from sim.audit import HOOKS, Invariant, first_gap
from sim.ecs_world import EcsWorld, SimTask
from sim.faults import heal, strike
from sim.functions import Functions
from sim.invariants import INVARIANTS
from sim.loop import Actor, Killed, Loop
from sim.people import People
from sim.plan import START, Fault, Plan
from sim.sqs_world import SqsWorld
from sim.store_world import Backend, SimClient, StoreWorld
from sim.trading import Trading, TradingSession
from sim.workers import FLIGHT_S, SimSession, SimWorker

#: How long the system may take to be whole again: a task that never starts is given 30 minutes, then backoff.
SETTLE_S = 3000.0
#: How long nothing at all may happen once it is whole: two sweeps.
QUIET_S = 130.0


@dataclass(frozen=True, slots=True)
class Violation:
    invariant: str
    at: float
    what: str


class World:
    """A plan on its way to being history."""

    pool = "default"
    version = "v1"
    claim_queue = POOL_CLAIM.name

    def __init__(self, plan: Plan, *, keep_trace: bool = False, backend: Any = None) -> None:
        self.plan = plan
        self.rng = Random(f"weather-{plan.seed}")
        self.loop = Loop(START)
        self.lines: list[str] | None = [] if keep_trace else None
        self._hash = blake2b(digest_size=16)
        self.faults: Counter[str] = Counter()
        self.violation: Violation | None = None
        self.armed: list[list[Any]] = []
        self.users = [f"u{n}" for n in range(plan.users)]
        self.workers: dict[str, SimWorker] = {}
        self.serving: dict[str, list[SimWorker]] = {user: [] for user in self.users}
        self.session_trouble: list[str] = []
        self.deaf_until = 0.0
        self.healed_at: float | None = None
        self.quiet_since: float | None = None
        self.worst_overlap = 0.0
        self.handler_errors: list[str] = []
        self._waiters: list[Callable[[], None]] = []
        made: Backend | None = backend(self._hear) if backend else None
        self.store_world: StoreWorld = StoreWorld(self, lossy=plan.lossy, backend=made)
        self.store_world.listen(self._hear)
        self.client = SimClient(self.store_world)
        self.client.world = self  # type: ignore[attr-defined]
        self.store = core_store.Store(self.client, wait_replica=plan.lossy)
        self.sqs = SqsWorld(self)
        self.people = People(self)
        self.sqs.queues[POOL_CLAIM.name].on_visible = lambda seconds: self._wake_later(seconds)
        self.ecs: EcsWorld = EcsWorld(self)
        self.trading: Trading | None = Trading(self) if plan.trading else None
        self.functions: Functions = Functions(self)
        self.invariants: list[Invariant] = [kind(self) for kind in INVARIANTS]
        self.script_names = _script_names()
        self._auditors = {
            hook: [getattr(i, hook) for i in self.invariants if hook in type(i).__dict__] for hook in HOOKS
        }

    def run(self) -> None:
        """Live through the plan, heal, settle, be quiet, and be judged."""
        wiring.use(self._wiring())
        threads.use(self)
        loop, plan = self.loop, self.plan
        for wish in plan.wishes:
            loop.after(wish.at, partial(self.people.grant, wish))
        for fault in plan.faults:
            loop.after(fault.at, partial(strike, self, fault))
        self.functions.start()
        loop.after(10.0, self._tick)
        try:
            loop.run_until(START + plan.duration, stop=self._failed)
            heal(self)
            self.healed_at = loop.now
            while not self._failed() and loop.now < self.healed_at + SETTLE_S:
                loop.run_until(loop.now + 20.0, stop=self._failed)
                if self.whole() == "":
                    break
            self.quiet_since = loop.now
            loop.run_until(loop.now + QUIET_S, stop=self._failed)
            if not self._failed():
                self.audit("end")
        finally:
            for actor in list(self._living_actors):
                loop.kill(actor)

    @property
    def _living_actors(self) -> list[Actor]:
        return [worker for worker in self.workers.values() if not worker.dead] + [
            actor for actor in self.functions.running if not actor.dead
        ]

    def _failed(self) -> bool:
        return self.violation is not None

    def violate(self, invariant: str, what: str) -> None:
        if self.violation is None:
            self.violation = Violation(invariant, self.loop.now - START, what)
            self.trace("VIOLATION", invariant, what)

    def trace(self, *words: str) -> None:
        line = f"{self.loop.now - START:.6f} {' '.join(words)}"
        self._hash.update(line.encode())
        if self.lines is not None:
            self.lines.append(line)

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    def duplicate_claim(self) -> None:
        """The next claim comes twice, whichever way it travels."""
        if self.claims_on_valkey:
            self.store_world.repeats += 1
        else:
            self.sqs.queues[POOL_CLAIM.name].duplicates += 1

    def duplicate_command(self) -> None:
        self.sqs.queues[WORKER_CONTROL.name].duplicates += 1

    def count(self, what: str) -> None:
        self.faults[what] += 1

    def effect(
        self,
        service: str,
        name: str,
        do: Callable[[], Any],
        *,
        reach: Callable[[], None] = lambda: None,
        lost: Callable[[], Exception] = lambda: TryLater("no answer"),
    ) -> Any:
        """One effect of the running actor on the outside: here it can crash, wait or be lied to."""
        actor = self.loop.actor
        assert actor is not None, f"{service} {name} outside of an actor"
        if actor.dead:
            raise Killed
        mode, amount = self._struck(actor, name) if self.armed else ("", 0.0)
        if mode == "crash_before":
            self._crash(actor)
        if mode == "pause":
            actor.held_until = max(actor.held_until, self.loop.now + amount)
            self.loop.sleep(amount)
        self.loop.sleep(self._latency())
        reach()
        if mode == "lost":
            raise lost()
        answer = do()
        self.trace(actor.name, service, name, mode)
        if mode == "crash_after":
            self._crash(actor)
        if mode == "stall":
            # The whole process hangs; what it asked for has been done, and the answer waits in its socket.
            actor.frozen_until = max(actor.frozen_until, self.loop.now + amount)
            if isinstance(actor, SimWorker):
                actor.acting_faults_until = actor.frozen_until
        self.loop.sleep(self._latency())
        if mode == "answer_lost":
            raise lost()
        return answer

    def _latency(self) -> float:
        draw = self.rng.random()
        return 0.0005 + draw * 0.003 if draw < 0.97 else (draw - 0.97) * 40.0

    def _struck(self, actor: Actor, name: str) -> tuple[str, float]:
        for entry in self.armed:
            fault: Fault = entry[0]
            if fault.target in (actor.kind, name):
                if entry[1] > 0:
                    entry[1] -= 1
                    continue
                self.armed.remove(entry)
                return fault.kind, fault.amount
        return "", 0.0

    def _crash(self, actor: Actor) -> None:
        self.trace(actor.name, "crashed")
        if isinstance(actor, SimWorker):
            self.exited(actor, 1)
        self.loop.kill(actor)
        raise Killed

    def _wiring(self) -> wiring.Wiring:
        settings = Settings(
            queue_worker_control=WORKER_CONTROL.name,
            queue_worker_control_dlq=WORKER_CONTROL_DLQ.name,
            queue_pool_claim=POOL_CLAIM.name,
            queue_order_tasks=ORDER_TASKS.name,
            queue_order_tasks_dlq=ORDER_TASKS_DLQ.name,
            pool=self.pool,
            pool_target=self.plan.pool_target,
            version=self.version,
        )
        repair = self._launcher(Priority.REPAIR)
        orders: Any = self.trading.deps() if self.trading is not None else None
        return wiring.Wiring(
            settings, self.sqs, self.deps, self.functions.invoke_batches, repair.tasks_on, orders
        )

    def _launcher(self, priority: Priority) -> ecs_launcher.EcsLauncher:
        budget = CallBudget(self.store, priority)
        return ecs_launcher.EcsLauncher(
            self.ecs.client(priority), "cluster", "definition", "provider", "worker", budget
        )

    def deps(self, priority: Priority) -> Deps:
        channel = (
            ValkeyChannel(self.client, self.pool)
            if self.claims_on_valkey
            else SqsChannel(self.sqs, POOL_CLAIM.name)
        )
        return Deps(
            store=self.store,
            launcher=self._launcher(priority),
            channel=channel,
            commands=SqsCommands(self.sqs, WORKER_CONTROL.name),
            clock=_WorldClock(self.loop),
            pool=self.pool,
            version=self.version,
            wake_pool=self.functions.wake_pool,
            repairs=self._launcher(Priority.REPAIR),
        )

    @property
    def claims_on_valkey(self) -> bool:
        return self.plan.claims_on_valkey

    def failed(self, actor: Actor, error: Exception) -> None:
        """An invocation ended with an exception."""
        self.trace(actor.name, "failed", type(error).__name__)
        # What may pass: the records come back, the sweep comes again.
        if not isinstance(error, TryLater):
            self.handler_errors.append(f"{actor.name}: {error!r}")

    def start_worker(self, task: SimTask) -> SimWorker:
        worker = SimWorker(self, task)
        self.workers[worker.name] = worker
        self.loop.after(0.0, lambda: worker.spawn(worker.main))
        return worker

    def session(self, worker: SimWorker) -> SimSession | TradingSession:
        trouble = self.session_trouble.pop(0) if self.session_trouble else ""
        if self.trading is not None:
            return self.trading.session(worker, trouble)
        return SimSession(worker, trouble)

    def exited(self, worker: SimWorker, code: int) -> None:
        self.loop.kill(worker)
        self.ecs.ended(worker.task, code, f"Essential container in task exited ({code})")

    def began_serving(self, worker: SimWorker, given: Assignment) -> None:
        self.trace("worker", "serves", worker.name, given.user, str(given.epoch))
        self.serving[given.user].append(worker)
        self.audit("began", worker, given)
        self.watch_acting(given.user)

    def watch_acting(self, user: str) -> None:
        self.audit("watch", user)

    def side_effect(self, worker: SimWorker, given: Assignment) -> None:
        """The worker has asked its lease and acts; the broker sees it a little later."""
        self.watch_acting(given.user)
        flight = self.rng.uniform(0.0, FLIGHT_S)
        worker.lands_at = self.loop.now + flight

        def land() -> None:
            if not worker.dead:
                self.trace("broker", given.user, worker.name, str(given.epoch))
                self.audit("landed", worker, given)

        self.loop.after(flight, land)

    def _hear(self, channel: str, body: str) -> None:
        """PUBLISH: fire and forget."""
        if channel != keys.CONTROL or self.deaf_until > self.loop.now or self.rng.random() < 0.1:
            return
        for worker in [w for w in self.workers.values() if w.control is not None and not w.dead]:
            delay = self._latency()
            self.loop.after(delay, partial(worker.spawn, partial(worker.hear, body)))

    def await_claim(self, until: float) -> None:
        """Suspend until a claim may be there, or until the time is over."""
        wake = self.loop.resumer()
        done = False

        def once() -> None:
            nonlocal done
            if not done:
                done = True
                wake()

        self._waiters.append(once)
        self.loop.after(until - self.loop.now, once)
        self.loop.park()

    def wake_waiters(self) -> None:
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            self.loop.after(self._latency(), wake)

    def _wake_later(self, seconds: float) -> None:
        self.loop.after(seconds, self.wake_waiters)

    def audit_script(self, words: tuple[Any, ...], reply: Any) -> None:
        name = self.script_names[words[1]]
        if name in ("reserve_slot", "accept_order", "cancel_order"):
            self.wake_waiters()
        keys = words[3 : 3 + words[2]]
        self.audit("script", name, keys, words[3 + words[2] :], reply)

    def audit(self, hook: str, *what: Any) -> None:
        for auditor in self._auditors[hook]:
            auditor(*what)

    def _tick(self) -> None:
        self.audit("tick")
        self.loop.after(10.0, self._tick)

    def whole(self) -> str:
        """Empty when everything is as it should be for good; else the first thing that is not."""
        return first_gap(self)


class _WorldClock:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.now

    def monotonic(self) -> float:
        return self._loop.now

    def sleep(self, seconds: float) -> None:
        self._loop.sleep(seconds)


def _script_names() -> dict[str, str]:
    """sha -> name: what the trace calls a step, and what the auditors are told of."""
    folder = Path(core_store.__file__).parent / "lua"
    return {core_store._source(path)[1]: path.stem for path in folder.glob("[a-z]*.lua")}
