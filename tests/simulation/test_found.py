"""What the simulator has found in this code, each as the smallest test that shows it."""

from __future__ import annotations

from typing import Any

import fakeredis

from muster import steps, warm_pool
from muster.store import Store
from sim.plan import Fault, Wish
from tests.simulation.histories import live, served
from tests.worlds import world


class _Between(Store):
    """Runs `then` once, after the first round trip that asks for all of the pool's tasks."""

    then: Any = None

    def one(self, step: Any) -> Any:
        answer = super().one(step)
        if self.then is not None and step.args[:1] == ("HGETALL",):
            then, self.then = self.then, None
            then()
        return answer


def test_a_draining_host_does_not_stop_a_worker_that_has_just_been_claimed() -> None:
    """Seed 674: the claim came between the look at the pool's tasks and the worker's removal from it."""
    store = _Between(fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True))
    w = world(store)
    w.add_idle("w1")
    store.then = lambda: store.one(steps.take_slot("default", "w1", "u1/7"))
    assert not warm_pool.task_stopped(w.deps, "task-w1")
    w.add_idle("w2")
    assert warm_pool.task_stopped(w.deps, "task-w2")


def test_a_fence_that_a_failover_forgot_is_not_a_fence_unheard() -> None:
    """Seed 6673: the failover forgot the stop and gave the claim back, so another worker served the start.
    The invariant counted the stop all the same; what the store does not know cannot stop anybody."""
    wishes = (Wish(34.338815, "start", "u0"), Wish(37.146776, "stop", "u0", late=2.807867))
    given_twice = 0
    for ms in range(0, 60, 2):  # one of these moments is between the claim's sending and its taking
        forgets = Fault(34.338815 + ms / 1000, "failover", amount=10.0, skip=5)
        history = live(forgets, wishes=wishes, pool=3, on_valkey=True, lossy=True, duration=210.0, seed=6673)
        givens = [worker.given for worker in served(history)]
        given_twice += len(givens) == 2 and givens[0] == givens[1]
    assert given_twice


def test_a_sweep_that_never_heard_of_its_turn_holds_up_none_after_it() -> None:
    """Seed 7630: the answer of `begin_sweep` was lost. Its turn stayed taken for the function's timeout,
    five sweeps found it busy, and a task of a silent host had no owner for all that time."""
    wishes = (Wish(43.413766, "start", "u0"), Wish(115.34749, "stop", "u0"))
    faults = (Fault(44.460605, "answer_lost", "maintenance"), Fault(119.212487, "zone_silent"))
    history = live(*faults, wishes=wishes, users=2, pool=3, duration=200.0, seed=7630)
    assert history.lines is not None
    assert any("begin_sweep" in line and "answer_lost" in line for line in history.lines)
    assert not any("'busy'" in line for line in history.lines)


def test_a_paused_invocation_ends_before_the_system_is_called_quiet() -> None:
    """Seed 7816: a duplicate of a command, paused for 59 s, asked ECS again with the token of the task
    that was there. Nothing new ran; the system was only called quiet before its last invocation had ended."""
    wishes = (Wish(33.206494, "start", "u1"),)
    faults = (
        Fault(219.062055, "freeze", amount=28.0),
        Fault(231.092124, "sqs_duplicate"),
        Fault(246.403579, "pause", "worker_control", 59.0, skip=2),
    )
    history = live(*faults, wishes=wishes, users=2, duration=249.26961, seed=7816)
    assert len(served(history, "u1")) == 2


def test_a_pool_worker_on_its_way_keeps_the_system_from_being_called_whole() -> None:
    """Seed 9195: the target was lowered while a slow launch was under way. The system was called whole before
    it came, and the surplus worker, which the manager's next run takes out, counted as a broken promise."""
    faults = (Fault(0.0, "launch", "slow", 150.0), Fault(20.0, "pool_target", amount=1.0))
    history = live(*faults, wishes=(), pool=2, duration=60.0, seed=9195)
    assert history.lines is not None
    came, left = (
        next(n for n, line in enumerate(history.lines) if sign in line)
        for sign in ("ecs RUNNING arn:task/0001", "the pool does not need this worker")
    )
    assert came < left


def test_a_worker_that_sleeps_through_its_lease_is_an_orphan_like_any_other() -> None:
    """Seed 5731: a worker of a silent host slept for 100 s. Its user had long been served by another when two
    sweeps had found its task without an owner; the invariant still took it for one that serves."""
    wishes = (
        Wish(30.508624, "start", "u0"), Wish(53.419236, "start", "u1"), Wish(81.445619, "restart", "u0"),
        Wish(92.307778, "restart", "u0"), Wish(149.738342, "restart", "u0", late=2.934989),
    )  # fmt: skip
    faults = (
        Fault(33.47012, "host_silent", skip=1), Fault(33.80511, "launch", "never"),
        Fault(67.140009, "pause", "worker", 100.0, skip=1),
        Fault(109.045346, "pause", "worker", 100.0, skip=5), Fault(111.265098, "host_silent"),
    )  # fmt: skip
    history = live(*faults, wishes=wishes, users=2, pool=2, on_valkey=True, duration=227.806538, seed=5731)
    assert history.lines is not None
    assert any("no owner in two sweeps" in line for line in history.lines)


def test_a_pool_worker_that_waits_for_a_held_mark_at_every_sweep_is_an_orphan_to_all_of_them() -> None:
    """Seed 6994: a failover forgot a restart, and the restart's claim went round: each pool worker waited in
    vain with it for a minute, was idle for ten seconds, and took it again. Three sweeps found one of them
    without an owner, the last stopped it, and the invariant counted the seconds since it had last been idle.
    """
    wishes = (
        Wish(16.037017883398004, "start", "u1"), Wish(26.154362421516268, "restart", "u1"),
        Wish(27.08603576261304, "start", "u0"), Wish(74.6861699169719, "redrive"),
    )  # fmt: skip
    faults = (
        Fault(23.217972423049883, "failover", amount=10.0, skip=5),
        Fault(26.154362421516268, "pause", "drop_mark", 59.0),
        Fault(62.000402181076005, "lost", "worker_control", skip=5),
        Fault(99.60186142599963, "launch", "fail"), Fault(113.09047812160598, "pool_target", amount=3.0),
    )  # fmt: skip
    history = live(*faults, wishes=wishes, users=2, pool=2, lossy=True, duration=125.4574186394119, seed=6994)
    assert history.lines is not None
    assert any("ecs stop arn:task/0003 no owner in two sweeps" in line for line in history.lines)
