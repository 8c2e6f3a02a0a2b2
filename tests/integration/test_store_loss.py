"""Valkey emptied under twenty live workers: nobody is killed, everybody takes the mark again."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from muster import keys
from muster.clock import SystemClock
from muster.lifecycle import Outcome
from muster.model import Assignment, Cause, Via
from muster.store import Store
from tests.worlds import HandWorker, World, command, world
from worker.heart import Heart

USERS = [f"u{n}" for n in range(20)]


class Fleet:
    """Twenty workers with real hearts in real threads; a beat takes 50 ms instead of 10 s."""

    def __init__(self, w: World) -> None:
        self.over = threading.Event()
        self.died: list[int] = []
        self.workers: list[HandWorker] = []
        assert set(w.apply(*(command("start", user) for user in USERS))) == {Outcome.LAUNCHED}
        for user in USERS:
            view = w.user(user)
            given = Assignment(user, view.epoch, Via.COLD, Cause.START, view.issued_at_ms, view.command_id)
            worker = HandWorker(w.store, SystemClock(), f"w-{user}", view.task_id).start_cold(given)
            worker.heart = Heart(
                worker.me, worker.ctx, wait=lambda _: self.over.wait(0.05), die=self.died.append
            )
            worker.heart.ready = True
            self.workers.append(worker)

    def __enter__(self) -> Fleet:
        for worker in self.workers:
            assert worker.heart is not None
            worker.heart.start()
        return self

    def __exit__(self, *_: Any) -> None:
        for worker in self.workers:
            assert worker.heart is not None
            worker.heart.stop()
        self.over.set()
        for worker in self.workers:
            assert worker.heart is not None
            assert worker.heart._thread is not None
            worker.heart._thread.join(10)


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


@pytest.mark.parametrize("times", [1, 5])
def test_nobody_is_killed_and_all_marks_come_back(valkey: Any, times: int) -> None:
    w = world(Store(valkey))
    with Fleet(w) as fleet:
        until(lambda: all(w.user(user).phase == "ready" for user in USERS), "the fleet did not come up")
        before = {user: (w.user(user).epoch, w.user(user).task_id) for user in USERS}
        for loss in range(times):
            valkey.flushall()
            w.sweep(f"in-the-middle-{loss}")
        until(lambda: all(w.user(user).live_mark for user in USERS), "a mark was not taken again")
        until(
            lambda: all(valkey.sismember(keys.index(keys.bucket_of(user)), user) for user in USERS),
            "a user was not indexed again",
        )
        assert {user: (w.user(user).epoch, w.user(user).task_id) for user in USERS} == before
        for run in range(4):
            report, batches = w.sweep(f"after-{run}")
            assert (report.orphans_stopped, sum(batch.users for batch in batches)) == (0, 20)
        assert w.repairs() == []
        assert [call for call in w.launcher.calls if call.name == "stop"] == []
        assert all(worker.lease.may_act() for worker in fleet.workers)
        assert not any(worker.stopping.is_set() for worker in fleet.workers)
        assert fleet.died == []


def test_a_start_after_the_loss_is_newer_than_any_worker_that_was(valkey: Any) -> None:
    """The epoch is a time as well: the old worker is fenced although the counter is gone."""
    w = world(Store(valkey))
    with Fleet(w) as fleet:
        valkey.flushall()
        old = fleet.workers[0]
        results = w.apply(command("restart", USERS[0]))
        assert results == [Outcome.LAUNCHED]
        assert w.user(USERS[0]).epoch > old.given.epoch
        until(lambda: old.stopping.is_set(), "the old worker did not hear of it")
        assert old.lease.ended.startswith("fenced")
