"""A history to order: exactly these wishes and faults, watched by every invariant."""

from __future__ import annotations

from collections.abc import Callable

from sim.install import installed
from sim.plan import Fault, Plan, Wish
from sim.workers import SimWorker
from sim.world import World


def live(
    *faults: Fault,
    wishes: tuple[Wish, ...] = (Wish(10.0, "start", "u0"),),
    users: int = 1,
    pool: int = 0,
    on_valkey: bool = False,
    lossy: bool = False,
    duration: float = 300.0,
    tweak: Callable[[World], None] = lambda world: None,
    seed: int = 1,
) -> World:
    """A history with exactly these wishes and faults; every invariant has watched it."""
    plan = Plan(seed, lossy, on_valkey, users, pool, duration, wishes, faults)
    with installed():
        world = World(plan, keep_trace=True)
        tweak(world)
        world.run()
    assert world.violation is None, world.violation
    return world


def served(world: World, user: str = "u0") -> list[SimWorker]:
    """Every worker that ever had the user's mark, in order."""
    return world.serving[user]


def alive(worker: SimWorker) -> bool:
    """At the end of the history; the processes themselves end with the world."""
    return worker.task.status == "RUNNING"


def calls(world: World, name: str) -> int:
    return sum(called == name for _, called, _ in world.ecs.calls)
