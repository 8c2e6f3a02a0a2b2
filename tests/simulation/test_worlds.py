"""The simulator's own parts: an invariant that overlooks something, or a service that is kinder than the real
one, proves nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from muster.blueprint import POOL_CLAIM, WORKER_CONTROL
from muster.model import Assignment
from sim.plan import Plan
from sim.safety import OVERLAP_BEAT_S, BrokerOrder, OneActor
from sim.world import World


def _world(*, lossy: bool = False) -> World:
    return World(Plan(1, lossy, False, 1, 0, 60.0, (), ()))


def _acting(name: str, began_at: float = 0.0) -> Any:
    return SimpleNamespace(
        name=name, closed=False, may_act=lambda: True, began_at=began_at, acting_faults_until=0.0
    )


def test_the_first_sight_of_two_actors_breaks_the_promise_of_a_durable_store() -> None:
    world = _world()
    world.serving["u0"] = [_acting("w1"), _acting("w2")]
    OneActor(world).watch("u0")
    assert world.violation is not None
    assert world.violation.what == "u0: w1, w2 may act together since 0.0 s"


def test_two_actors_are_borne_for_the_stated_bound_where_writes_were_lost() -> None:
    world = _world(lossy=True)
    world.store_world.lost.append((world.loop.now, world.loop.now))
    world.loop.now += 60.0  # whatever else could excuse them is long over
    world.serving["u0"] = [_acting("w1"), _acting("w2")]
    watch = OneActor(world).watch
    watch("u0")
    world.loop.now += OVERLAP_BEAT_S - 0.1
    watch("u0")
    assert world.violation is None
    world.loop.now += 0.2
    watch("u0")
    assert world.violation is not None


def test_an_older_effect_in_the_very_moment_of_the_newer_one_breaks_the_promise() -> None:
    world = _world()
    order = BrokerOrder(world)
    for epoch in (2, 1):
        order.landed(_acting(f"w{epoch}"), cast(Assignment, SimpleNamespace(user="u0", epoch=epoch)))
    assert world.violation is not None


def test_a_fifo_queue_keeps_the_order_of_a_group_and_of_nothing_else() -> None:
    seen = set()
    queue = _world().sqs.queues[WORKER_CONTROL.name]
    for round_ in range(40):
        for user, number in (("u0", 1), ("u1", 1), ("u0", 2), ("u2", 1), ("u1", 2)):
            queue.put(str(number), user, f"{round_}-{user}-{number}")
        batch = queue.receive(10)
        for group in ("u0", "u1", "u2"):
            of_group = [message.body for message in batch if message.group == group]
            assert of_group == sorted(of_group)
        assert len(batch) == 5
        seen.add(tuple(dict.fromkeys(message.group for message in batch)))
        for message in batch:
            assert queue.delete(message.handle)
    assert len(seen) == 6, "all orders of three groups"


@pytest.mark.parametrize("queue", [WORKER_CONTROL.name, POOL_CLAIM.name])
def test_the_order_of_a_receive_is_the_seeds(queue: str) -> None:
    def history() -> list[str]:
        messages = _world().sqs.queues[queue]
        for number in range(20):
            messages.put(str(number), f"u{number}", str(number))
        return [message.body for message in messages.receive(10)]

    assert history() == history() != [str(number) for number in range(10)]
