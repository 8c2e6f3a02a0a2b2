"""Processes on virtual time: what the real job worker and its child take for `time`, `threading`, `signal`,
`subprocess` and shared memory. A process that was killed does nothing more, not even its `finally` blocks.
"""

from __future__ import annotations

import argparse
import queue
import signal
import subprocess
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from muster.errors import TryLater
from sim.jobs.plan import DRAIN_S, HEARTBEAT_S, IDLE_EXIT_S, TIME_LIMIT_S
from sim.loop import Actor, Killed, Loop
from worker import jobs as job_worker
from worker import jobs_child
from worker.jobs_context import Context
from worker.jobs_slot import Slot

if TYPE_CHECKING:
    from muster.jobs import WorkItem
    from sim.jobs.world import JobWorld

#: Monotonic clocks run this much too slow or too fast.
DRIFT = 0.07
#: A container that lived shorter than this is not restarted in place.
RESTART_AFTER_S = 5.0

_worlds: list[JobWorld] = []


def here() -> JobWorld:
    """The world that is running."""
    return _worlds[-1]


def enter(world: JobWorld) -> None:
    _worlds[:] = [world]


class HostClock:
    """The clocks of one host: wall time that is a little off, monotonic time with its own rate."""

    def __init__(self, loop: Loop, rate: float = 1.0, skew: float = 0.0) -> None:
        self._loop = loop
        self.rate = rate
        self.skew = skew

    def now(self) -> float:
        return self._loop.now + self.skew

    def monotonic(self) -> float:
        return self._loop.now * self.rate

    def sleep(self, seconds: float) -> None:
        running()
        self._loop.sleep(seconds / self.rate)


class Process(Actor):
    """A process: an actor with a host's clocks. People and the schedule are such, too."""

    def __init__(self, world: JobWorld, name: str, kind: str, clock: HostClock) -> None:
        super().__init__(name, kind)
        self.world = world
        self.clock = clock
        self.container: Container | None = None
        self.handlers: dict[int, Callable[..., None]] = {}
        self.troubled_until = 0.0  #: held up by a fault until then
        self.leaving = False  #: a child that has said it leaves, and is about to claim for the last time

    def spawn(self, body: Callable[[], None]) -> None:
        """One more thread, as soon as the process is not frozen."""
        loop = self.world.loop
        if self.frozen_until > loop.now:
            loop.after(self.frozen_until - loop.now, lambda: self.spawn(body))
        elif not self.dead:
            loop.spawn(self, body)

    def hold_up(self, seconds: float) -> None:
        self.troubled_until = max(self.troubled_until, self.world.loop.now + seconds)

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT that much later."""
        self.frozen_until = max(self.frozen_until, self.world.loop.now + seconds)
        self.hold_up(seconds)


def running() -> Process:
    """The process whose code is running; one that is dead goes no further."""
    process = cast(Process, here().loop.actor)
    if process.dead:
        raise Killed
    return process


class Container:
    """What a launch starts: one job worker with its child. Restarted in place if the deployment does that."""

    def __init__(self, world: JobWorld, worker_id: str) -> None:
        self.world = world
        self.launch_id = worker_id
        self.options = argparse.Namespace(worker_id=worker_id)
        rng = world.rng
        self.clock = HostClock(
            world.loop, 1.0 + rng.uniform(-DRIFT, DRIFT), rng.choice((0.0, rng.uniform(-1, 1) * world.skew))
        )
        self.parent: Process | None = None
        self.child: SimPopen | None = None
        self.slot: SimSlot | None = None
        self.booted_at = 0.0
        self.over = False  #: ended for good

    @property
    def worker_id(self) -> str:
        """Its name in the registry: the one it was launched with, or a new one after that was lost."""
        return str(self.options.worker_id)

    @property
    def living(self) -> list[Process]:
        """Its processes that are alive, parent first."""
        both = (self.parent, self.child.process if self.child else None)
        return [process for process in both if process is not None and not process.dead]

    def boot(self) -> None:
        if self.over:
            return
        self.booted_at = self.world.loop.now
        self.parent = Process(self.world, self.launch_id, "parent", self.clock)
        self.parent.container = self
        self.world.trace("boot", self.launch_id)
        self.parent.spawn(self._main)

    def _main(self) -> None:
        plan = self.world.plan
        told = vars(_options(self.world.pool_name, plan.batch, plan.max_jobs))
        self.options = argparse.Namespace(**{**told, "worker_id": self.launch_id})
        try:
            code = job_worker.JobWorker(self.options, self.world.launcher).run()
        except Exception as crashed:  # noqa: BLE001 - what Python does with an exception: exit 1
            self.world.surprised(self.worker_id, crashed)
            code = 1
        self.exited(code)

    def exited(self, code: int) -> None:
        """The parent has ended: its child dies with it, and the deployment decides about a restart."""
        world, parent = self.world, self.parent
        if parent is None or parent.dead:
            return
        world.trace("exit", self.worker_id, str(code))
        if code != 0 or self.over:
            world.disturb()  # it did not leave by itself
        world.loop.kill(parent)
        if self.child is not None:
            self.child.ended(-signal.SIGKILL)
        lived = world.loop.now - self.booted_at
        if code != 0 and world.plan.restarts and lived >= RESTART_AFTER_S:
            world.loop.after(world.rng.uniform(0.5, 3.0), self.boot)
        else:
            self.over = True

    def terminate(self) -> None:
        """SIGTERM to the parent, as a scheduler that wants the place sends it."""
        parent = self.parent
        if parent is None or parent.dead:
            return
        handler = parent.handlers.get(signal.SIGTERM)
        if handler is None:
            self.exited(-signal.SIGTERM)
        else:
            parent.spawn(lambda: handler(signal.SIGTERM, None))


@cache
def _options(pool: str, batch: int, max_jobs: int | None) -> argparse.Namespace:
    """A worker's command line, parsed once: parsing it costs as much as a second of virtual time."""
    argv = ["--pool", pool, "--url", "sim:", "--worker-id", "reserved", "--batch", str(batch)]
    argv += ["--heartbeat", str(HEARTBEAT_S), "--idle-exit", str(IDLE_EXIT_S), "--drain", str(DRAIN_S)]
    argv += ["--time-limit", str(TIME_LIMIT_S), "--processor", "sim=sim.jobs.processes:work"]
    argv += ["--max-jobs", str(max_jobs)] if max_jobs else []
    return job_worker.parse(argv)


class SimSlot(Slot):
    """The real page of shared memory, in a plain buffer. The dead write nothing."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = cast(Any, here().pages[fd])
        self._begun = self.count

    @classmethod
    def create(cls) -> SimSlot:
        pages = here().pages
        pages.append(bytearray(64))
        slot = cls(len(pages) - 1)
        container = running().container
        assert container is not None
        container.slot = slot
        return slot

    def close(self) -> None:
        running()

    def begin(self, job_id: str, token: int, started: float, limit: float) -> None:
        running()
        super().begin(job_id, token, started, limit)

    def end(self) -> None:
        running()
        super().end()


class SimPopen:
    """`subprocess.Popen` of the worker's child."""

    def __init__(self, command: list[str], *, stdin: int, pass_fds: list[int]) -> None:  # noqa: ARG002
        parent = running()
        world, container = parent.world, parent.container
        assert container is not None
        self._world = world
        self._told = command[-1]
        self._waiters: list[Callable[[], None]] = []
        self.returncode: int | None = None
        self.pid = 2
        self.process = Process(world, f"{parent.name}/child", "child", container.clock)
        self.process.container = container
        container.child = self
        world.loop.after(world.rng.uniform(0.05, 0.3), lambda: self.process.spawn(self._main))

    def _main(self) -> None:
        options = jobs_child.parse([self._told])
        try:
            jobs = self._world.jobs_for(self.process.clock)
            jobs_child.Child(options, SimSlot(options.slot), jobs).run()
            code = 0
        except Exception as crashed:  # noqa: BLE001 - what Python does with an exception: exit 1
            self._world.surprised(self.process.name, crashed)
            code = 1
        self.ended(code)

    def ended(self, code: int) -> None:
        """Its last moment, whoever brought it about."""
        if self.returncode is not None:
            return
        self.returncode = code
        self._world.trace("end", self.process.name, str(code))
        self._world.loop.kill(self.process)
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            self._world.loop.after(0.0, wake)

    def kill(self) -> None:
        running()
        self.ended(-signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        running()
        if self.returncode is None:
            park(self._world.loop, self._waiters, timeout)
        if self.returncode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired("child", timeout)
        return self.returncode


class SimEvent:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            here().loop.after(0.0, wake)

    def wait(self, timeout: float | None = None) -> bool:
        running()
        if not self._set:
            park(here().loop, self._waiters, timeout)
        return self._set


class SimQueue:
    """`queue.SimpleQueue`."""

    def __init__(self) -> None:
        self._items: list[Any] = []
        self._waiters: list[Callable[[], None]] = []

    def put(self, item: Any) -> None:
        self._items.append(item)
        waiters, self._waiters = self._waiters, []
        for wake in waiters:
            here().loop.after(0.0, wake)

    def get(self, timeout: float) -> Any:
        running()
        if not self._items:
            park(here().loop, self._waiters, timeout)
        if not self._items:
            raise queue.Empty
        return self._items.pop(0)


class SimThread:
    """`threading.Thread` of the running process."""

    def __init__(self, target: Callable[[], None], name: str, daemon: bool) -> None:  # noqa: ARG002
        self._target = target
        self._ended = SimEvent()

    def start(self) -> None:
        process = running()
        process.world.loop.after(0.0, lambda: process.spawn(self._run))

    def _run(self) -> None:
        process = running()
        try:
            self._target()
        except Exception as crashed:  # noqa: BLE001 - it ends this thread; that it must not is a promise
            process.world.surprised(f"{process.name} heartbeat", crashed)
        self._ended.set()

    def join(self) -> None:
        self._ended.wait()


def park(loop: Loop, waiters: list[Callable[[], None]], timeout: float | None) -> None:
    """Suspend until one of `waiters` is called, or `timeout` of this process's clock is over."""
    wake: Callable[[], None] | None = loop.resumer()

    def once() -> None:
        nonlocal wake
        if wake is not None:
            now, wake = wake, None
            now()

    waiters.append(once)
    timer = None
    if timeout is not None:
        timer = loop.after(timeout / running().clock.rate, once)
    loop.park()
    if timer is not None:
        timer.cancel()
    if once in waiters:
        waiters.remove(once)


def _signal(number: int, handler: Callable[..., None]) -> None:
    running().handlers[number] = handler


def _parent_of() -> int:
    container = running().container
    return 1 if container is not None and container.parent is not None and not container.parent.dead else 0


TIME = SimpleNamespace(
    monotonic=lambda: cast(Process, here().loop.actor).clock.monotonic(),
    sleep=lambda seconds: running().clock.sleep(seconds),
)
THREADING = SimpleNamespace(Event=SimEvent, Thread=SimThread)
QUEUE = SimpleNamespace(SimpleQueue=SimQueue, Empty=queue.Empty)
SIGNAL = SimpleNamespace(
    signal=_signal,
    SIGTERM=signal.SIGTERM,
    SIGINT=signal.SIGINT,
    SIGKILL=signal.SIGKILL,
    Signals=signal.Signals,
)
SUBPROCESS = SimpleNamespace(
    Popen=SimPopen, TimeoutExpired=subprocess.TimeoutExpired, DEVNULL=subprocess.DEVNULL
)
#: The parent is process 1 of its container.
PARENT_OS = SimpleNamespace(getpid=lambda: 1, environ={})
CHILD_OS = SimpleNamespace(getppid=_parent_of)


def work(job: WorkItem, ctx: Context) -> dict[str, Any]:
    """The processor of every simulated job: works in steps, and does what its plan says is wrong with it."""
    process = running()
    plan = job.data
    trouble = plan["trouble"] if job.attempts <= plan["bad_attempts"] else ""
    for step in range(ctx.resume_from or 0, plan["steps"]):
        process.clock.sleep(plan["seconds"] / plan["steps"])
        if trouble == "deaf":
            continue
        ctx.check()
        if plan["steps"] > 1:
            ctx.checkpoint(step + 1, (step + 1) / plan["steps"])
        if trouble == "fails":
            raise ValueError("as planned")
        if trouble == "crashes":
            assert process.container is not None
            assert process.container.child is not None
            process.container.child.ended(-signal.SIGSEGV)
            raise Killed
        if trouble == "hangs":
            process.clock.sleep(10 * TIME_LIMIT_S)
    return {"attempt": job.attempts}


def expected(error: Exception) -> bool:
    """What may end a process when its backend is away."""
    return isinstance(error, TryLater)
