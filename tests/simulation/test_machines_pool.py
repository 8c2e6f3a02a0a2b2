"""Any history of the warm pool's scripts, against a model of sets and counts.

A life ends because a rule ends it: the score of a worker, a claim or a launch is put into the past.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from api.fleet import Fleet
from muster import keys, steps
from muster.settings import Settings
from muster.store import Store
from tests.simulation.machines import STORES, client_of, of, run

SCRIPTS = of(
    "muster/lua",
    "bind_launch",
    "leave_pool",
    "plan_pool",
    "pool_beat",
    "release_slot",
    "reserve_slot",
    "take_slot",
) | of("api/lua", "read_pool")
POOL = "p"
versions = st.sampled_from(["v1", "v1", "v1", "v2"])
names = st.integers(0, 5)


class PoolMachine(RuleBasedStateMachine):
    """`over` holds what has run out and that no script has looked at since."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.store.client.flushall()
        self.fleet = Fleet(store, None, Settings(pool=POOL, pool_target=9))
        self.idle: dict[str, str] = {}  # worker -> version
        self.claims: set[str] = set()
        self.launching: dict[str, str] = {}  # launch -> task, '' until it is bound
        self.over: set[str] = set()
        self.sent: list[str] = []  # claims on the Valkey channel
        self.target: int | None = None
        self.version = ""
        self.runs = 0

    def expire(self) -> None:
        for gone in self.over & (self.idle.keys() | self.claims):
            self.idle.pop(gone, None)
            self.claims.discard(gone)
            self.over.discard(gone)

    @rule(n=names, version=versions, by_channel=st.booleans())
    def reserve_slot(self, n: int, version: str, by_channel: bool) -> None:
        claim = f"claim{n}"
        slot = self.store.one(steps.reserve_slot(POOL, claim, version, claim if by_channel else ""))
        self.expire()
        left = list(self.idle.values()).count(version) - len(self.claims)
        assert slot.target == (self.target or 0)
        if claim in self.claims:
            assert (slot.reserved, slot.left) == (True, left), "a repeat is reserved and takes nothing"
        elif left > 0:
            assert (slot.reserved, slot.left) == (True, left - 1)
            self.claims.add(claim)
            if by_channel:
                self.sent.append(claim)
            assert len(self.claims) <= len(self.idle), "more claims than workers that wait"
        else:
            assert (slot.reserved, slot.left) == (False, left)

    @rule(n=names)
    def release_slot(self, n: int) -> None:
        known = f"claim{n}" in self.claims
        answer = self.store.one(steps.release_slot(POOL, f"claim{n}"))
        assert answer == ("released" if known else "unknown",)
        self.claims.discard(f"claim{n}")
        self.over.discard(f"claim{n}")

    @rule(worker=names, claim=names)
    def take_slot(self, worker: int, claim: int) -> None:
        answer = self.store.one(steps.take_slot(POOL, f"w{worker}", f"claim{claim}"))
        self.expire()
        if self.idle.pop(f"w{worker}", None) is None:
            assert answer == ("retired",)
        else:
            assert answer == ("left",)
            self.claims.discard(f"claim{claim}")

    @rule(n=names, version=versions, launch=names)
    def pool_beat(self, n: int, version: str, launch: int) -> None:
        """By an old hand, by a worker of a launch that was reserved, or by one nobody expects."""
        worker = f"w{n}"
        launch_id = [*sorted(self.launching), f"stray{launch}"][launch % (len(self.launching) + 1)]
        answer = self.store.one(steps.pool_beat(POOL, worker, f"task-{worker}", version, launch_id, "h"))
        self.expire()
        if worker not in self.idle:
            reserved = self.launching.pop(launch_id, None) is not None
            self.over.discard(launch_id)
            if self.version and version != self.version:
                assert answer == ("outdated", self.version)
                return
            taken = len(self.idle) + len(self.launching.keys() - self.over)
            if not reserved and self.target is not None and taken >= self.target:
                assert answer == ("surplus",)
                return
        assert answer == ("idle",)
        self.idle[worker] = version

    @rule(n=names)
    def leave_pool(self, n: int) -> None:
        assert self.store.one(steps.leave_pool(POOL, f"w{n}")) == ("left",)
        self.idle.pop(f"w{n}", None)
        self.over.discard(f"w{n}")

    @rule(size=st.integers(0, 5), version=versions, most=st.sampled_from([2, 50]))
    def plan_pool(self, size: int, version: str, most: int) -> None:
        self.runs += 1
        plan = self.store.one(steps.plan_pool(POOL, size, version, f"run{self.runs}", most))
        self.expire()
        self.target, self.version = size, version
        overdue = {launch: self.launching.pop(launch) for launch in self.over & self.launching.keys()}
        self.over -= overdue.keys()
        assert dict(plan.overdue) == overdue
        old = {worker for worker, runs in self.idle.items() if runs != version}
        surplus = max(0, len(self.idle) - len(old) - len(self.claims) - size)
        retired = dict(plan.retired)
        assert old <= retired.keys() <= self.idle.keys()
        assert len(retired) == len(plan.retired) == len(old) + surplus
        assert all(task == f"task-{worker}" for worker, task in retired.items())
        for worker in retired:
            del self.idle[worker]
        assert (plan.idle, plan.launching, plan.outstanding) == (
            len(self.idle),
            len(self.launching),
            len(self.claims),
        )
        missing = size - len(self.idle) - len(self.launching)
        assert len(set(plan.launch_ids)) == len(plan.launch_ids) == max(0, min(missing, most))
        assert not self.launching.keys() & set(plan.launch_ids)
        self.launching |= dict.fromkeys(plan.launch_ids, "")

    @rule(n=names, failed=st.booleans())
    def bind_launch(self, n: int, failed: bool) -> None:
        launch = [*sorted(self.launching), "stray"][n % (len(self.launching) + 1)]
        answer = self.store.one(steps.bind_launch(POOL, launch, "" if failed else f"task-{launch}"))
        if failed:
            assert answer == ("freed",)
            self.launching.pop(launch, None)
            self.over.discard(launch)
        elif launch in self.launching:
            assert answer == ("bound",)
            self.launching[launch] = f"task-{launch}"
        else:
            assert answer == ("joined",)

    @rule(n=names)
    def something_runs_out(self, n: int) -> None:
        for key, living in (
            (keys.pool_idle(POOL), sorted(self.idle)),
            (keys.pool_outstanding(POOL), sorted(self.claims)),
            (keys.pool_launching(POOL), sorted(self.launching)),
        ):
            if living:
                chosen = living[n % len(living)]
                self.store.client.zadd(key, {chosen: 1})
                self.over.add(chosen)

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        client: Any = self.store.client
        pipe = client.pipeline(transaction=False)
        pipe.zrange(keys.pool_idle(POOL), 0, -1).hgetall(keys.pool_versions(POOL))
        pipe.zrange(keys.pool_outstanding(POOL), 0, -1).zrange(keys.pool_launching(POOL), 0, -1)
        pipe.hgetall(keys.pool_tasks(POOL)).lrange(keys.pool_claims(POOL), 0, -1)
        idle, told, claims, launching, tasks, sent = pipe.execute()
        assert (set(idle), told) == (self.idle.keys(), self.idle)
        assert (set(claims), set(launching), sent) == (self.claims, self.launching.keys(), self.sent)
        bound = {launch: task for launch, task in self.launching.items() if task}
        assert tasks == {worker: f"task-{worker}" for worker in self.idle} | bound, "a task nobody owns"

    @invariant()
    def a_person_sees_the_living_and_only_them(self) -> None:
        seen = self.fleet.pool()
        assert (seen.idle, seen.outstanding, seen.launching) == (
            len(self.idle.keys() - self.over),
            len(self.claims - self.over),
            len(self.launching.keys() - self.over),
        )
        assert (seen.target, seen.version or "") == (9 if self.target is None else self.target, self.version)


@pytest.mark.parametrize(("kind", "examples"), STORES)
def test_every_history_of_the_pool_follows_the_model(
    kind: str, examples: int, request: pytest.FixtureRequest
) -> None:
    store = Store(client_of(kind, request))
    run(lambda: PoolMachine(store), examples, scripts=SCRIPTS)
