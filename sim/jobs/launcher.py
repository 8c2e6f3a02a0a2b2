"""The launcher of the job world: ECS or the local machine, when it is slow, full, throttled or lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.errors import TryLater
from sim.jobs.processes import Container

if TYPE_CHECKING:
    from sim.jobs.world import JobWorld


class Launcher:
    """A `muster.jobs.capacity.Launch`."""

    def __init__(self, world: JobWorld) -> None:
        self._world = world
        self.troubles: list[tuple[str, float]] = []  #: what happens to the next launches
        self.throttled_until = 0.0
        self.failed: dict[str, float] = {}  #: launches that were refused, and when

    def __call__(self, pool: str, worker_id: str, pin: str | None) -> None:
        assert (pool, pin) == (self._world.pool_name, None)
        self._world.effect("launch", worker_id, lambda: self._launch(worker_id))

    def _launch(self, worker_id: str) -> None:
        world = self._world
        if self.throttled_until > world.loop.now:
            world.disturb()
            self.failed[worker_id] = world.loop.now
            raise TryLater("rate exceeded")
        trouble, amount = self.troubles.pop(0) if self.troubles else ("", 0.0)
        if trouble:
            world.trace("launch", trouble, worker_id)
            world.disturb(amount)
        if trouble == "fails":
            self.failed[worker_id] = world.loop.now
            raise RuntimeError("no host has room")
        if trouble == "never":
            return
        container = Container(world, worker_id)
        world.containers.append(container)
        world.loop.after(world.rng.uniform(0.3, 2.0) + amount, container.boot)
        if trouble == "answer_lost":
            raise TryLater("no answer")
