"""Worker processes: the real boot, life, heart and lease on a drifting clock, with a session that only acts.

A worker is one actor with two threads, as in the real process: the main thread (`boot._drive`, then
`boot.serve`) and the heart. What blocks in reality (an event, a lock, a claim) suspends here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from muster.claims import ClaimChannel, Delivery, SqsChannel, ValkeyChannel
from muster.model import Assignment
from muster.store import Store
from sim.loop import Actor
from worker import boot
from worker.control import Control
from worker.exits import Exit
from worker.heart import Heart
from worker.lease import Lease
from worker.life import Me, cold_start, pool_wait
from worker.session import Context, SessionRefused

if TYPE_CHECKING:
    from sim.ecs_world import SimTask
    from sim.world import World

#: Clocks run this much too slow or too fast: far more than any crystal, so that the lease's margin is used.
DRIFT = 0.07
#: A side effect reaches the broker within this time of asking the lease; the lease's margin covers it.
FLIGHT_S = 2.0


class DriftingClock:
    """This machine's clocks. Wall time is the world's; the monotonic one has its own rate."""

    def __init__(self, world: World, rate: float) -> None:
        self._world = world
        self.rate = rate

    def now(self) -> float:
        return self._world.loop.now

    def monotonic(self) -> float:
        return self._world.loop.now * self.rate

    def sleep(self, seconds: float) -> None:
        self._world.loop.sleep(seconds / self.rate)


class Stopping:
    """`threading.Event` on virtual time."""

    def __init__(self, worker: SimWorker) -> None:
        self._worker = worker
        self._set = False
        self._waiters: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            self._worker.world.loop.after(0.0, wake)

    def wait(self, timeout: float | None = None) -> bool:
        """Suspend until set, or `timeout` of this worker's clock has passed."""
        if not self._set:
            loop = self._worker.world.loop
            wake = _Once(loop.resumer())
            self._waiters.append(wake)
            if timeout is not None:
                loop.after(timeout / self._worker.clock.rate, wake)
            loop.park()
        return self._set


class _Once:
    """Wakes its thread at most once, whoever comes first."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake: Callable[[], None] | None = wake

    def __call__(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()


class TurnLock:
    """`threading.Lock` between the threads of one worker."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._held = False
        self._waiters: list[Callable[[], None]] = []

    def __enter__(self) -> None:
        while self._held:
            self._waiters.append(self._world.loop.resumer())
            self._world.loop.park()
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            self._world.loop.after(0.0, wake)


class SimHeart(Heart):
    """The real heart; its thread is one of the simulator's."""

    def __init__(self, me: Me, ctx: Context, *, wait: Callable[[float], Any]) -> None:  # noqa: ARG002
        self.worker = cast("SimWorker", cast(Any, me.clock).worker)
        super().__init__(me, ctx, wait=self.worker.pause, die=self.worker.die)
        self._lock = cast(Any, TurnLock(self.worker.world))
        self.worker.heart = self
        self.worker.serving(ctx.given)

    def start(self) -> None:
        world = self.worker.world
        world.loop.after(0.0, lambda: self.worker.spawn(self._run))

    def beat(self) -> None:
        super().beat()
        self.worker.world.watch_acting(self._ctx.given.user)


class SimControl(Control):
    """The real control channel; messages are handed to it."""

    def __init__(self, client: Any, given: Assignment, stop: Callable[[str], None], log: Any) -> None:
        super().__init__(client, given, stop, log)
        world = client.world
        world.workers[world.loop.actor.name].control = self


class SimSession:
    """Opens, acts every few seconds after asking the lease, closes. Sometimes it fails or is refused."""

    def __init__(self, worker: SimWorker, trouble: str) -> None:
        self._worker = worker
        self._trouble = trouble

    def open(self, ctx: Context) -> None:
        world = self._worker.world
        ctx.lease.require()
        self._worker.pause(world.rng.uniform(0.05, 1.5))
        if self._trouble == "refused":
            raise SessionRefused("bad credentials")
        if self._trouble == "fails":
            raise ConnectionError("the broker hung up")

    def run(self, ctx: Context) -> None:
        world, worker = self._worker.world, self._worker
        if self._trouble == "blocks":
            worker.pause(120.0)  # work that hears nothing and yields to nobody; only the heart goes on
        while not ctx.stopping.wait(world.rng.uniform(1.0, 8.0)):
            if ctx.lease.may_act():
                world.side_effect(worker, ctx.given)

    def close(self, ctx: Context) -> None:  # noqa: ARG002
        """Letting go takes a moment: what is on its way to the broker is waited for, nothing new is sent."""
        worker = self._worker
        worker.closed = True
        worker.pause(worker.world.rng.choice((0.0, 0.1, 2.0)))
        worker.pause(max(0.0, worker.lands_at - worker.world.loop.now) + 0.001)


class SimChannel:
    """The real channel; only the blocking wait is the simulator's."""

    def __init__(self, worker: SimWorker, real: ClaimChannel) -> None:
        self._worker = worker
        self._real = real

    def receive(self, timeout: float) -> Delivery | None:
        loop = self._worker.world.loop
        until = loop.now + timeout / self._worker.clock.rate
        while True:
            delivery = self._real.receive(timeout)
            if delivery is not None or loop.now >= until or self._worker.stopping.is_set():
                return delivery
            self._worker.world.await_claim(until)


class SimWorker(Actor):
    """One worker process on one host."""

    def __init__(self, world: World, task: SimTask) -> None:
        super().__init__(f"w-{task.arn[-4:]}", "worker")
        self.world = world
        self.task = task
        self.clock = DriftingClock(world, 1.0 + world.rng.uniform(-DRIFT, DRIFT))
        cast(Any, self.clock).worker = self
        self.stopping = Stopping(self)
        self.lease = Lease(self.clock)
        self.version = world.version  #: of the code it was started with
        self.heart: SimHeart | None = None
        self.control: SimControl | None = None
        self.given: Assignment | None = None
        self.began_at = 0.0
        self.acting_faults_until = 0.0  #: frozen or cut off: its next beat may come late
        self.closed = False  #: its session is over, whatever its lease says
        self.lands_at = 0.0  #: when its last side effect reaches the broker
        self.log: list[str] = []

    def main(self) -> None:
        """The process: an error that nobody expected ends it."""
        try:
            code = self._main()
        except Exception as crashed:  # noqa: BLE001 - what Python does with an exception: exit 1
            self.world.failed(self, crashed)
            code = Exit.CRASHED
        self.world.trace("worker", f"exit {code.name}", self.name)
        self.world.exited(self, int(code))

    def _main(self) -> Exit:
        """`boot.main` without the process around it."""
        world = self.world
        self.pause(world.rng.uniform(0.1, 0.6))
        given = boot._cold_assignment(self.task.environ)
        me = Me(
            worker_id=self.name,
            task_id=self.task.arn,
            version=self.version,
            pool=world.pool,
            launch_id=self.task.environ.get("MUSTER_LAUNCH_ID", ""),
            host=self.task.host,
            store=Store(world.client),
            clock=self.clock,
            lease=self.lease,
            stopping=self.stopping.is_set,
            log=self.log.append,
        )
        stopping, moments = cast(Any, self.stopping), boot.Moments(woken=0)
        if given:
            taken = boot._drive(cold_start(me, given), None, stopping, moments)
        else:
            real: ClaimChannel = (
                ValkeyChannel(world.client, world.pool, self.name)
                if world.claims_on_valkey
                else SqsChannel(world.sqs, world.claim_queue)
            )
            taken = boot._drive(pool_wait(me), cast(Any, SimChannel(self, real)), stopping, moments)
        if isinstance(taken, Exit):
            return taken
        return boot.serve(me, taken, world.session(self), stopping, when_ready=lambda: None)

    def spawn(self, body: Callable[[], None]) -> None:
        loop = self.world.loop
        if self.frozen_until > loop.now:
            loop.after(self.frozen_until - loop.now, lambda: self.spawn(body))
        elif not self.dead:
            loop.spawn(self, body)

    def pause(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    def serving(self, given: Assignment) -> None:
        """The mark is taken: from here on this worker may act."""
        self.given = given
        self.began_at = self.world.loop.now
        self.world.began_serving(self, given)

    def may_act(self) -> bool:
        return not self.dead and self.given is not None and self.lease.may_act()

    def terminate(self) -> None:
        """SIGTERM."""
        if not self.dead:
            self.stopping.set()
            self.world.wake_waiters()

    def kill(self) -> None:
        """SIGKILL, power off, out of memory."""
        if not self.dead:
            self.world.trace("worker", "killed", self.name)
            self.world.loop.kill(self)

    def die(self, code: int) -> None:
        """`os._exit` from the heart."""
        self.world.trace("worker", f"died {code}", self.name)
        self.world.exited(self, code)
        self.world.loop.kill(self)

    def hear(self, body: str) -> None:
        """A message on the control channel."""
        if self.control is not None and not self.dead:
            self.control._handle(body)
