"""What the simulator has found in this code, each as the smallest test that shows it."""

from __future__ import annotations

from typing import Any

import fakeredis

from muster import steps, warm_pool
from muster.store import Store
from tests.worlds import world


class _Between(Store):
    """Runs `then` once, after the first round trip that asks for all of the pool's tasks."""

    then: Any = None

    def run(self, *wanted: Any) -> list[Any]:
        answers = super().run(*wanted)
        if self.then is not None and any(step.args[:1] == ("HGETALL",) for step in wanted):
            then, self.then = self.then, None
            then()
        return answers


def test_a_draining_host_does_not_stop_a_worker_that_has_just_been_claimed() -> None:
    """Seed 674: the claim came between the look at the pool's tasks and the worker's removal from it."""
    store = _Between(fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True))
    w = world(store)
    w.add_idle("w1")
    store.then = lambda: store.one(steps.take_slot("default", "w1", "u1/7"))
    assert not warm_pool.task_stopped(w.deps, "task-w1")
    w.add_idle("w2")
    assert warm_pool.task_stopped(w.deps, "task-w2")
