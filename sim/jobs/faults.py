"""How each kind of fault strikes the job world. One function per kind; the plan names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sim.faults import STRIKES
from sim.jobs.plan import DRAIN_S
from sim.plan import Fault

if TYPE_CHECKING:
    from sim.jobs.processes import Container
    from sim.jobs.world import JobWorld

#: A scheduler that sent SIGTERM sends SIGKILL this much later.
KILL_AFTER_S = 3 * DRAIN_S

Strike = Callable[["JobWorld", Fault], None]


def strike(world: JobWorld, fault: Fault) -> None:
    """Let this fault happen now."""
    world.faults[f"{fault.kind} {fault.target}".strip()] += 1
    world.trace("fault", str(fault))
    if fault.kind in STRIKES:
        world.armed.append([fault, fault.skip])
    elif fault.kind == "squeeze":
        world.squeezes.append(fault)
    else:
        if fault.kind != "launch":
            world.disturb(fault.amount + fault.skip)
        _KINDS[fault.kind](world, fault)


def heal(world: JobWorld) -> None:
    """The faults are over: what has not struck never will, what lasts ends now."""
    world.armed.clear()
    world.squeezes.clear()
    world.launcher.troubles.clear()
    now, store = world.loop.now, world.store_world
    world.launcher.throttled_until = min(world.launcher.throttled_until, now)
    store.away_until, store.slow_until = min(store.away_until, now), min(store.slow_until, now)


def _some_container(world: JobWorld) -> Container | None:
    """Rather one that has a job than one that waits."""
    living = [container for container in world.containers if container.living]
    holders = {job.claimed_by for job in world.record.open}
    busy = [container for container in living if container.worker_id in holders]
    return world.rng.choice(busy or living) if living else None


def _freeze(world: JobWorld, fault: Fault) -> None:
    if container := _some_container(world):
        for process in container.living:
            if fault.target in ("worker", process.kind):
                process.freeze(fault.amount)


def _cut_off(world: JobWorld, fault: Fault) -> None:
    if container := _some_container(world):
        for process in container.living:
            process.cut_off_until = world.loop.now + fault.amount
            process.hold_up(fault.amount)


def _kill(world: JobWorld, fault: Fault) -> None:
    container = _some_container(world)
    if container is None:
        return
    if fault.target == "child":
        if container.child is not None:
            container.child.ended(-9)
        return
    if fault.target == "worker":
        container.over = True  # the host is gone: nothing restarts it
    container.exited(137)


def _kill_all(world: JobWorld, fault: Fault) -> None:  # noqa: ARG001
    for container in world.containers:
        container.over = True
        container.exited(137)


def _terminate(world: JobWorld, fault: Fault) -> None:  # noqa: ARG001
    container = _some_container(world)
    if container is None:
        return

    def kill() -> None:
        container.exited(137)

    container.over = True
    container.terminate()
    world.loop.after(KILL_AFTER_S, kill)


def _throttle(world: JobWorld, fault: Fault) -> None:
    world.launcher.throttled_until = world.loop.now + fault.amount


_KINDS: dict[str, Strike] = {
    "freeze": _freeze,
    "cut_off": _cut_off,
    "kill": _kill,
    "kill_all": _kill_all,
    "terminate": _terminate,
    "store_away": lambda world, fault: world.store_world.outage(fault.amount),
    "store_slow": lambda world, fault: world.store_world.slow(fault.amount),
    "failover": lambda world, fault: world.store_world.failover(fault.amount, float(fault.skip)),
    "launch": lambda world, fault: world.launcher.troubles.append((fault.target, fault.amount)),
    "throttled": _throttle,
}
