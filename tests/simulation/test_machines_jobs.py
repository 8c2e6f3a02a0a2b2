"""Any history of a job pool, on every backend, against one small model of what its port promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from muster.clock import FakeClock
from muster.jobs import Finished, NewJob, Verdict, connect
from muster.jobs.model import retry_delay
from muster.jobs.ports import WorkPool
from muster.jobs.valkey import ValkeyPool
from muster.store import Store
from tests.simulation.machines import client_of, of, run

SCRIPTS = of("muster/jobs/lua", "cancel", "extend", "push", "report", "requeue", "settle", "trim", "turn")
workers = st.sampled_from(["w1", "w2"])
recent = st.integers(0, 3)
VISIBILITY = 60.0
#: The backends whose steps are Lua.
ON_VALKEY = ("fakeredis", "valkey")


@dataclass
class Job:
    id: str
    priority: int
    retries: int
    dedup: str | None
    status: str = "pending"
    run_at: float = 0.0
    attempts: int = 0
    token: int = 0
    worker: str | None = None
    until: float = 0.0
    cancel: bool = False

    def settle(self, verdict: Verdict, now: float) -> str:
        self.status, self.run_at = "pending", 0.0
        if verdict is Verdict.CANCEL or self.cancel:
            self.status = "cancelled"
        elif verdict is not Verdict.RETURN and self.attempts >= self.retries:
            self.status = "poisoned"
        elif verdict is Verdict.FAIL:
            self.run_at = now + retry_delay(self.attempts)
        self.attempts -= verdict is Verdict.RETURN and self.status == "pending"
        return self.status


class JobsMachine(RuleBasedStateMachine):
    def __init__(self, fresh_pool: Callable[[FakeClock], WorkPool]) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.pool = fresh_pool(self.clock)
        self.jobs: dict[str, Job] = {}
        self.tickets: list[tuple[str, int, str]] = []  # every claim ever given: id, token, worker
        self.late = 0
        self.newest = ""

    def live(self, job_id: str, token: int) -> Job | None:
        job = self.jobs.get(job_id)
        return job if job and job.status == "claimed" and job.token == token else None

    @rule(
        priority=st.integers(0, 1),
        delay=st.sampled_from([0.0, 0.0, 10.0]),
        dedup=st.sampled_from([None, None, "k"]),
        retries=st.integers(1, 3),
        count=st.integers(1, 2),
    )
    def push(self, priority: int, delay: float, dedup: str | None, retries: int, count: int) -> None:
        new = NewJob({"n": []}, priority=priority, delay=delay, dedup=dedup, max_retries=retries)
        twins = [j.id for j in self.jobs.values() if dedup and j.dedup == dedup and j.status in OPEN]
        ids = self.pool.push_many([new] * count)
        assert len(ids) == count
        if twins:
            assert ids == twins * count
            return
        assert len(set(ids)) == (1 if dedup else count)
        assert ids == sorted(ids)
        assert ids[0] > self.newest, "an id did not rise: it may have been used before"
        self.newest = ids[-1]
        for job_id in ids:
            run_at = self.clock.now() + delay if delay else 0.0
            self.jobs[job_id] = Job(job_id, priority, retries, dedup, run_at=run_at)

    @rule(worker=workers, claim=st.integers(0, 2), results=st.lists(recent, max_size=2, unique=True))
    def turn(self, worker: str, claim: int, results: list[int]) -> None:
        """Results of any claim ever given: alive, over, or somebody else's by now."""
        mine = [ticket for ticket in self.tickets if ticket[2] == worker]
        handed = [mine[-1 - back] for back in results if back < len(mine)]
        answer = self.pool.turn(worker, [Finished(i, token) for i, token, _ in handed], claim, VISIBILITY)
        for (job_id, token, _), accepted in zip(handed, answer.accepted, strict=True):
            job = self.live(job_id, token)
            assert accepted == (job is not None)
            self.late += job is None
            if job:
                job.status = "done"
        due = [j for j in self.jobs.values() if j.status == "pending" and j.run_at <= self.clock.now()]
        expected = sorted(due, key=lambda job: (-job.priority, job.id))[:claim]
        assert [item.id for item in answer.claimed] == [job.id for job in expected]
        for item, job in zip(answer.claimed, expected, strict=True):
            assert item.data == {"n": []}
            job.status, job.worker, job.run_at = "claimed", worker, 0.0
            job.attempts, job.token = job.attempts + 1, job.token + 1
            job.until = self.clock.now() + VISIBILITY
            assert (item.attempts, item.token) == (job.attempts, job.token)
            self.tickets.append((job.id, job.token, worker))

    @precondition(lambda self: self.tickets)
    @rule(back=recent, verdict=st.sampled_from(Verdict))
    def settle(self, back: int, verdict: Verdict) -> None:
        job_id, token, _ = self.tickets[-1 - back % len(self.tickets)]
        job = self.live(job_id, token)
        expected = job.settle(verdict, self.clock.now()) if job else None
        assert self.pool.settle([(job_id, token)], verdict, "why") == [expected]

    @rule(worker=workers)
    def worker_is_lost(self, worker: str) -> None:
        held = [j for j in self.jobs.values() if j.status == "claimed" and j.worker == worker]
        assert self.pool.release_by_worker(worker) == len(held)
        for job in held:
            job.settle(Verdict.RELEASE, self.clock.now())

    @rule()
    def reaper_comes(self) -> None:
        now = self.clock.now()
        over = [j for j in self.jobs.values() if j.status == "claimed" and j.until <= now]
        assert self.pool.release_expired() == len(over)
        for job in over:
            job.settle(Verdict.RELEASE, now)

    @rule(worker=workers)
    def extend(self, worker: str) -> None:
        held = [j for j in self.jobs.values() if j.status == "claimed" and j.worker == worker]
        told = {(h.id, h.token, h.cancel_requested) for h in self.pool.extend(worker, VISIBILITY)}
        assert told == {(job.id, job.token, job.cancel) for job in held}
        for job in held:
            job.until = self.clock.now() + VISIBILITY

    @precondition(lambda self: self.tickets)
    @rule(back=recent)
    def report(self, back: int) -> None:
        job_id, token, _ = self.tickets[-1 - back % len(self.tickets)]
        assert self.pool.report(job_id, token, {"at": 1}, [token]) == (self.live(job_id, token) is not None)

    @precondition(lambda self: self.jobs)
    @rule(back=recent)
    def cancel(self, back: int) -> None:
        job = self.pick(back)
        if job.status == "pending":
            job.status = "cancelled"
        job.cancel |= job.status == "claimed"
        assert self.pool.cancel(job.id) == job.status

    @precondition(lambda self: self.jobs)
    @rule(back=recent)
    def requeue(self, back: int) -> None:
        job = self.pick(back)
        again = job.status in ("poisoned", "cancelled")
        assert self.pool.requeue(job.id) == again
        if again:
            job.status, job.attempts, job.cancel, job.dedup, job.run_at = "pending", 0, False, None, 0.0

    def pick(self, back: int) -> Job:
        return self.jobs[sorted(self.jobs)[-1 - back % len(self.jobs)]]

    @rule(seconds=st.sampled_from([1.0, 10.0, VISIBILITY]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(keep=st.integers(0, 2))
    def trim(self, keep: int) -> None:
        """Age is not in question here (nothing is a week old): only the surplus, oldest first."""
        ended = sorted(job.id for job in self.jobs.values() if job.status not in OPEN)
        gone = ended[: max(0, len(ended) - keep)]
        assert self.pool.trim(1e6, 1e6, keep) == len(gone)
        for job_id in gone:
            del self.jobs[job_id]

    @invariant()
    def the_pool_is_as_the_model_says(self) -> None:
        counts = self.pool.counts()
        for status in ("pending", "claimed", "done", "poisoned", "cancelled"):
            expected = sum(job.status == status for job in self.jobs.values())
            assert getattr(counts, status) == expected, status
        assert counts.late == self.late
        listed = {
            (i.id, i.status.value, i.attempts, i.token, i.dedup, i.cancel_requested)
            for i in self.pool.list(limit=1000)
        }
        assert {entry[:4] for entry in listed} == {
            (j.id, j.status, j.attempts, j.token) for j in self.jobs.values()
        }
        still_open = {entry for entry in listed if entry[1] in OPEN}
        assert still_open == {
            (j.id, j.status, j.attempts, j.token, j.dedup, j.cancel)
            for j in self.jobs.values()
            if j.status in OPEN
        }


OPEN = ("pending", "claimed")


def pools(kind: str, request: pytest.FixtureRequest, folder: Path) -> Callable[[FakeClock], WorkPool]:
    """Makes an empty pool of that kind, every time."""
    made = iter(range(10**6))
    client = client_of(kind, request) if kind in ON_VALKEY else None

    def fresh_pool(clock: FakeClock) -> WorkPool:
        if client is not None:
            client.flushall()
            return ValkeyPool("p", Store(client), clock)
        if kind == "memory":
            return connect("memory://", clock).work.pool("p")
        return connect(f"sqlite:///{folder}/{next(made)}.db?synchronous=normal", clock).work.pool("p")

    return fresh_pool


@pytest.mark.parametrize(
    ("kind", "examples"), [("memory", 60), ("sqlite", 40), ("fakeredis", 40), ("valkey", 20)]
)
def test_every_history_of_a_job_pool_follows_the_model(
    kind: str, examples: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    fresh_pool = pools(kind, request, tmp_path)
    run(lambda: JobsMachine(fresh_pool), examples, scripts=SCRIPTS if kind in ON_VALKEY else ())


@pytest.mark.parametrize("kind", ["memory", "sqlite", "valkey"])
def test_a_turn_that_claims_nothing_does_not_let_a_due_job_wait_behind_a_newer_one(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    clock = FakeClock()
    pool = pools(kind, request, tmp_path)(clock)
    due = pool.push_many([NewJob("due", delay=10.0)])
    clock.advance(10.0)
    pool.turn("w1", [], 0, VISIBILITY)
    pool.push("newer")
    assert [item.id for item in pool.turn("w1", [], 1, VISIBILITY).claimed] == due


@pytest.mark.parametrize("kind", ["memory", "sqlite", "valkey"])
def test_an_id_is_not_used_again_after_the_newest_job_was_trimmed(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pool = pools(kind, request, tmp_path)(FakeClock())
    first = pool.push("old")
    old = pool.claim("w1")
    assert old is not None
    assert pool.complete(old)
    assert pool.trim(1e6, 1e6, keep=0) == 1
    assert pool.push("new") > first
    assert pool.claim("w2") is not None
    assert not pool.complete(old), "the token of a forgotten job was taken for the new one's"
