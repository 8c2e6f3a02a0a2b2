"""Thousands of random lives of one user: whatever comes twice, late or not at all, the last command wins.

The real lifecycle, maintenance, life and heart run on fakeredis in virtual time; what is random is the order
in which queue, launcher, workers and sweep get their turn.
"""

from __future__ import annotations

import random

import pytest

from muster.commands import Action, Command
from muster.errors import Refused, TryLater
from muster.launchers import fake
from muster.launchers.port import TaskKind
from muster.maintenance import task_stopped
from muster.model import Assignment, Cause, Via
from muster.warm_pool import manage
from tests.worlds import HandWorker, VirtualTime, World, command, pop_claim, virtual_world

USER = "u1"


class Life:
    """One interleaving."""

    def __init__(self, rng: random.Random, world: World, clock: VirtualTime) -> None:
        self.rng, self.world, self.clock = rng, world, clock
        self.queue: list[Command] = []
        self.done: list[Command] = []
        self.workers: dict[str, HandWorker] = {}
        self.runs = 0

    def deliver(self) -> None:
        """The head of the group; a record that failed stays the head. Done ones may come again."""
        again = self.done and self.rng.random() < 0.2
        record = self.rng.choice(self.done) if again else self.queue[0] if self.queue else None
        if record is None:
            return
        (result,) = self.world.apply(record)
        assert not isinstance(result, Refused), result
        if not again and not isinstance(result, TryLater):
            self.done.append(self.queue.pop(0))

    def fill_pool(self) -> None:
        self.runs += 1
        manage(self.world.deps, self.rng.choice([0, 1, 2]), f"fill-{self.runs}")

    def boot(self, *, everyone: bool = False) -> None:
        """Tasks become workers, in any order, sooner or later."""
        for task_id, launch in self.world.launcher.living().items():
            if task_id in self.workers or not (everyone or self.rng.random() < 0.5):
                continue
            if self.world.launcher.describe([task_id])[task_id].status != "running":
                continue
            worker = HandWorker(
                self.world.store, self.clock, f"w-{task_id}", task_id, launch_id=launch.launch_id
            )
            self.workers[task_id] = worker
            if launch.kind is TaskKind.POOL:
                worker.start_in_pool()
            else:
                env = launch.env
                issued_at, cause = int(env["MUSTER_ISSUED_AT"]), Cause(env["MUSTER_CAUSE"])
                given = Assignment(USER, launch.epoch, Via.COLD, cause, issued_at, env["MUSTER_COMMAND_ID"])
                worker.start_cold(given)

    def work(self, *, everyone: bool = False) -> None:
        living = self.world.launcher.living()
        for task_id, worker in list(self.workers.items()):
            if worker.exit is not None:
                continue
            if task_id not in living:
                worker.told_to_stop = True
            if everyone or self.rng.random() < 0.6:
                worker.step(lambda: pop_claim(self.world.store.client))
            if worker.exit is not None and task_id in living:
                self.world.launcher.finish(task_id, int(worker.exit))
            if worker.exit is not None and self.rng.random() < 0.5:
                for _ in range(self.rng.choice([1, 2])):  # events come at least once, or not at all
                    task_stopped(self.world.deps, task_id, "its process ended")
        self.queue += self.world.repairs()
        self.check_at_most_one_acts()

    def sweep(self) -> None:
        self.runs += 1
        self.world.sweep(f"run-{self.runs}")
        self.queue += self.world.repairs()

    def check_at_most_one_acts(self) -> None:
        acting = [w for w in self.workers.values() if w.exit is None and w.heart and w.lease.may_act()]
        assert len(acting) <= 1, [(w.worker_id, w.given.epoch) for w in acting]

    def disturb(self) -> None:
        rng, launcher = self.rng, self.world.launcher
        launcher.plan(
            rng.choice(
                [fake.throttled(), fake.lost(), fake.no_capacity(), fake.late(30), fake.fails("no image")]
            )
        )

    def crash(self) -> None:
        serving = [t for t, w in self.workers.items() if w.exit is None and w.heart]
        if serving:
            task_id = self.rng.choice(serving)
            del self.workers[task_id]
            if task_id in self.world.launcher.living():
                self.world.launcher.finish(task_id, 137, "killed")

    def settled(self, last: Command) -> bool:
        view = self.world.user(USER)
        mine = [w for w in self.workers.values() if w.exit is None and w.heart]
        tasks = [t for t, launch in self.world.launcher.living().items() if launch.kind is TaskKind.USER]
        if last.action is Action.STOP:
            return not mine and not view.mark and not view.lease and not tasks
        return (
            len(mine) == 1
            and view.live_mark is not None
            and view.live_mark.worker_id == mine[0].worker_id
            and mine[0].lease.may_act()
            and not self.queue
        )


def live_once(rng: random.Random, world: World, clock: VirtualTime) -> None:
    life = Life(rng, world, clock)
    actions = [rng.choice(["start", "stop", "restart"]) for _ in range(rng.randint(2, 4))]
    for action in actions:
        life.queue.append(command(action, USER))
        last = life.queue[-1]
        for _ in range(rng.randint(1, 3)):
            move = rng.choice(
                [life.deliver, life.deliver, life.boot, life.work, life.work, life.fill_pool,
                 life.disturb, life.crash, life.sweep]
            )  # fmt: skip
            move()
            if rng.random() < 0.3:
                clock.advance(rng.choice([0.5, 4, 11, 31]))
    for _ in range(80):
        for _ in range(len(life.queue) + 1):
            life.deliver()
        life.boot(everyone=True)
        life.work(everyone=True)
        if life.settled(last):
            break
        clock.advance(10)
        life.work(everyone=True)
        life.sweep()
    assert life.settled(last), (actions, world.user(USER), life.queue)
    view = world.user(USER)
    assert (view.want == "running") == (last.action is not Action.STOP)
    # What is redriven from a dead-letter queue now changes nothing any more.
    world.apply(*life.done)
    life.work(everyone=True)
    assert world.user(USER).want == view.want


@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("seed", [1, 2])
def test_a_thousand_interleavings_end_as_the_last_command_says(
    seed: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(f"{seed} {part}")
    world, clock = virtual_world(monkeypatch)
    for _ in range(250):
        world.store.client.flushall()
        world.launcher.__init__(clock)  # type: ignore[misc]
        live_once(rng, world, clock)
