"""The child's last claim, every interleaving with a push: the job is claimed, or a launch was made."""

from __future__ import annotations

import argparse
import os
from itertools import permutations
from pathlib import Path

import pytest

from muster.clock import FakeClock
from muster.errors import TryLater
from muster.jobs import (
    JobStatus,
    NewJob,
    PoolSettings,
    WorkerFilter,
    WorkerRegistration,
    WorkerStatus,
    connect,
)
from muster.jobs.capacity import ensure_capacity
from muster.jobs.model import LIVE
from worker.jobs_child import Child
from worker.jobs_context import PROCESSORS
from worker.jobs_slot import Current, Slot


@pytest.fixture
def slot():
    page = Slot.create()
    yield page
    page.close()


@pytest.fixture
def jobs():
    return connect("memory://", FakeClock())


def child(jobs, slot, **more):
    options = {
        "pool": "p", "worker_id": "w", "batch": 1, "max_jobs": None, "idle_exit": 0.0, "visibility": 60.0,
        "time_limit": 60.0, "parent": os.getppid(), "results": Path("unused"), "processors": PROCESSORS,
    }  # fmt: skip
    return Child(argparse.Namespace(**{**options, **more}), slot, jobs)


ORDERS = [
    order
    for order in permutations(["push", "check", "leave", "last claim"])
    if order.index("push") < order.index("check") and order.index("leave") < order.index("last claim")
]


@pytest.mark.parametrize("order", ORDERS)
def test_a_push_around_the_last_claim_is_claimed_or_launched_for(jobs, slot, monkeypatch, order):
    pool = jobs.work.pool("p")
    jobs.registration.register(WorkerRegistration("w", pool="p"))
    launches = []

    def steps(names):
        for name in names:
            if name == "push":
                pool.push({"n": 1})
            else:
                ensure_capacity(jobs, "p", lambda *launch: launches.append(launch))

    pusher = {}
    current = "before"
    for name in order:
        if name in ("leave", "last claim"):
            current = name
        else:
            pusher.setdefault(current, []).append(name)

    leave, turn = jobs.registration.update_status, type(pool).turn

    def leaving(worker, status):
        answer = leave(worker, status)
        if status is WorkerStatus.TERMINATED:
            steps(pusher.get("leave", []))
        return answer

    claims = []

    def claiming(self, *args):
        answer = turn(self, *args)
        claims.append(answer.claimed)
        if len(claims) == 1:
            steps(pusher.get("last claim", []))
        return answer

    steps(pusher.get("before", []))
    monkeypatch.setattr(jobs.registration, "update_status", leaving)
    monkeypatch.setattr(type(pool), "turn", claiming)
    claimed = child(jobs, slot)._last_claim()
    assert claimed or launches
    assert jobs.registration.get("w").status is (WorkerStatus.ACTIVE if claimed else WorkerStatus.TERMINATED)


def test_six_orders_are_possible():
    assert len(ORDERS) == 6


def test_a_last_claim_leaves_its_job_to_the_worker_that_took_its_place(jobs, slot, monkeypatch):
    pool = jobs.work.pool("p")
    pool.configure(PoolSettings(max_workers=1))
    jobs.registration.register(WorkerRegistration("w", host="h", pool="p"))
    job_id, launches = [], []
    leave = jobs.registration.update_status

    def pushed_as_it_leaves(worker, status):
        answer = leave(worker, status)
        job_id.append(pool.push({"n": 1}))
        ensure_capacity(jobs, "p", lambda pool, worker, pin: launches.append(worker))
        return answer

    monkeypatch.setattr(jobs.registration, "update_status", pushed_as_it_leaves)
    assert child(jobs, slot)._last_claim() == []
    left = pool.get(job_id[0])
    assert (left.status, left.attempts) == (JobStatus.PENDING, 0)
    assert [w.worker_id for w in jobs.registration.list(WorkerFilter(status=LIVE))] == launches
    monkeypatch.undo()
    jobs.registration.lose(launches[0], jobs.registration.get(launches[0]).last_heartbeat)
    assert child(jobs, slot)._come_back(), "there is room again"
    assert (jobs.registration.get("w").status, jobs.registration.get("w").host) == (WorkerStatus.ACTIVE, "h")


def test_a_turn_whose_answer_was_lost_keeps_results_owed_and_returns_unknown_claims(jobs, slot, monkeypatch):
    pool = jobs.work.pool("p")
    ids = pool.push_many([NewJob({"n": n}, max_retries=1) for n in range(3)])
    real, calls = type(pool).turn, []

    def lossy(self, *args):
        answer = real(self, *args)
        calls.append(args)
        if len(calls) in (1, 3):
            raise TryLater("the answer was lost")
        return answer

    monkeypatch.setattr(type(pool), "turn", lossy)
    child(jobs, slot).run()
    assert [pool.get(i).status for i in ids] == [JobStatus.DONE] * 3
    assert pool.counts().late == 0
    assert all(pool.get(i).attempts == 1 for i in ids)


def test_the_slot_shows_a_job_only_when_it_is_complete(slot):
    assert slot.current is None
    now = Current("1700000000000001", 3, 12.5, 60.0)
    slot.begin(now.job_id, now.token, now.started, now.limit)
    assert (slot.current, slot.count) == (now, 1)
    slot.end()
    assert slot.current is None
    slot.cancel("1700000000000001")
    assert slot.cancelled("1700000000000001")
    assert not slot.cancelled("1700000000000002")
