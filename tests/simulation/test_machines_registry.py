"""Any history of the job workers' registration scripts, against a model of three dictionaries."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster.clock import FakeClock
from muster.jobs.model import LIVE, WorkerRegistration, WorkerStatus
from muster.jobs.valkey_workers import ValkeyRegistration
from muster.store import Store
from tests.simulation.machines import STORES, client_of, of, run

SCRIPTS = of("muster/jobs/lua", "beat", "register", "status")
names = st.sampled_from(["w0", "w1", "w2", "w3"])
pools = st.sampled_from(["a", "b"])
totals = st.integers(0, 3)
statuses = st.sampled_from(list(WorkerStatus))


class RegistryMachine(RuleBasedStateMachine):
    def __init__(self, store: Store) -> None:
        super().__init__()
        store.client.flushall()
        self.clock = FakeClock()
        self.registry = ValkeyRegistration(store, self.clock)
        self.status: dict[str, WorkerStatus] = {}
        self.beat: dict[str, float] = {}
        self.pool: dict[str, str] = {}
        self.meta: dict[str, dict[str, int]] = {}

    def others_live(self, pool: str, *own: str) -> int:
        return sum(s in LIVE and self.pool[w] == pool and w not in own for w, s in self.status.items())

    def lost(self, worker: str) -> bool:
        """Declared lost: its jobs were given away, so it comes back under a new id only."""
        return self.status.get(worker) is WorkerStatus.LOST

    def put(self, worker: str, pool: str, status: WorkerStatus) -> None:
        self.status[worker], self.beat[worker] = status, self.clock.now()
        self.pool[worker], self.meta[worker] = pool, {}

    @rule(seconds=st.sampled_from([0.5, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(worker=names, pool=pools)
    def register(self, worker: str, pool: str) -> None:
        self.registry.register(WorkerRegistration(worker, pool=pool))
        self.put(worker, pool, WorkerStatus.ACTIVE)

    @rule(worker=names, pool=pools, total=totals)
    def join(self, worker: str, pool: str, total: int) -> None:
        room = self.others_live(pool, worker) < total and not self.lost(worker)
        assert self.registry.join(WorkerRegistration(worker, pool=pool), total) == room
        if room:
            self.put(worker, pool, WorkerStatus.ACTIVE)

    @rule(workers=st.lists(names, min_size=1, unique=True), pool=pools, total=totals)
    def reserve(self, workers: list[str], pool: str, total: int) -> None:
        """Never more live workers than the pool may have, however many are asked for."""
        room = max(0, total - self.others_live(pool, *workers))
        asked = [WorkerRegistration(worker, pool=pool) for worker in workers]
        taken = [worker for worker in workers if not self.lost(worker)][:room]
        assert self.registry.reserve(pool, total, asked) == taken
        for worker in taken:
            self.put(worker, pool, WorkerStatus.STARTING)

    @rule(worker=names, number=st.integers(0, 2))
    def heartbeat(self, worker: str, number: int) -> None:
        answer = self.registry.heartbeat(worker, {f"k{number}": number} if number else None)
        known = self.status.get(worker, WorkerStatus.LOST)
        assert answer is known
        if known is not WorkerStatus.LOST:
            self.beat[worker] = self.clock.now()
            self.meta[worker] |= {f"k{number}": number} if number else {}

    @rule(worker=names, status=statuses)
    def update_status(self, worker: str, status: WorkerStatus) -> None:
        known = self.status.get(worker, WorkerStatus.LOST) is not WorkerStatus.LOST
        assert self.registry.update_status(worker, status) == known
        if known:
            self.status[worker] = status

    @rule(worker=names, seen_ago=st.sampled_from([0.0, 0.0, 10.0]))
    def lose(self, worker: str, seen_ago: float) -> None:
        """Only whoever has not beaten since it was looked at, and has not left cleanly."""
        seen = self.beat.get(worker, 0.0) - seen_ago
        due = self.status.get(worker) in LIVE and seen_ago == 0.0
        assert self.registry.lose(worker, seen) == due
        if due:
            self.status[worker] = WorkerStatus.LOST

    @rule(older_than=st.sampled_from([0.0, 5.0]))
    def forget(self, older_than: float) -> None:
        cutoff = self.clock.now() - older_than
        gone = [w for w, status in self.status.items() if status not in LIVE and self.beat[w] < cutoff]
        assert self.registry.forget(older_than) == len(gone)
        for worker in gone:
            for kept in (self.status, self.beat, self.pool, self.meta):
                del kept[worker]

    @invariant()
    def the_registry_is_the_model(self) -> None:
        found = {w.worker_id: w for w in self.registry.list()}
        assert {w: record.status for w, record in found.items()} == self.status
        assert {w: record.last_heartbeat for w, record in found.items()} == self.beat
        assert {w: record.pool for w, record in found.items()} == self.pool
        assert {w: record.metadata for w, record in found.items()} == self.meta


@pytest.mark.parametrize(("kind", "examples"), STORES)
def test_every_history_of_the_registration_scripts_follows_the_model(
    kind: str, examples: int, request: pytest.FixtureRequest
) -> None:
    store = Store(client_of(kind, request))
    run(lambda: RegistryMachine(store), examples, scripts=SCRIPTS)
