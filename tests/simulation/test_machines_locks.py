"""Any history of the small scripts: the compare-and-set lock, the sweep's turn, the call budget."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster import keys, steps
from muster.blueprint import CallBucket
from muster.store import Store, lua, tagged
from tests.simulation.machines import STORES, client_of, of, run

SCRIPTS = of(
    "muster/lua", "begin_sweep", "cas_delete", "cas_extend", "end_sweep", "keep_sweep", "take_budget"
)
LOCK = "lock:{x}"
#: Slow enough that the wall time a history takes is worth less than one call.
BUCKET = CallBucket("b", 10, 1)
holders = st.sampled_from(["a", "b"])


class LocksMachine(RuleBasedStateMachine):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.store.client.flushall()
        self.lock = ""
        self.run_id, self.busy = "", False
        self.began = self.server_s()
        self.waited = 0.0  # seconds the bucket was told to have rested
        self.drawn = 0

    def server_s(self) -> float:
        seconds, micros = self.store.client.time()
        return float(seconds) + float(micros) / 1e6

    @rule(who=holders)
    def lock_is_taken(self, who: str) -> None:
        took = self.store.client.set(LOCK, who, nx=True, px=30_000)
        assert bool(took) == (self.lock == "")
        self.lock = self.lock or who

    @rule(who=holders)
    def cas_extend(self, who: str) -> None:
        answer = self.store.one(lua("cas_extend", (LOCK,), (who, 60_000), tagged))
        expected = {"": ("missing",), who: ("extended",)}.get(self.lock, ("held", self.lock))
        assert answer == expected
        if answer == ("extended",):
            assert 30_000 < self.store.client.pttl(LOCK) <= 60_000

    @rule(who=holders)
    def cas_delete(self, who: str) -> None:
        answer = self.store.one(lua("cas_delete", (LOCK,), (who,), tagged))
        assert answer == {"": ("missing",), who: ("deleted",)}.get(self.lock, ("held", self.lock))
        self.lock = "" if self.lock == who else self.lock

    @rule(who=holders)
    def begin_sweep(self, who: str) -> None:
        answer = self.store.one(steps.begin_sweep(who))
        if self.busy and self.run_id != who:
            assert answer == ("busy", self.run_id)
        else:
            assert answer == ("begin", "" if self.run_id == who else self.run_id)
            self.run_id, self.busy = who, True

    @rule(who=holders)
    def keep_sweep(self, who: str) -> None:
        self.store.client.pexpire(keys.SWEEP_RUN, 1000)
        own = self.busy and self.run_id == who
        assert self.store.one(steps.keep_sweep(who)) == (("kept",) if own else ("lost", self.run_id))
        assert (self.store.client.pttl(keys.SWEEP_RUN) > 1000) == own

    @rule(who=holders)
    def end_sweep(self, who: str) -> None:
        assert self.store.one(steps.end_sweep(who)) == ("ended" if self.run_id == who else "not_running",)
        self.busy &= self.run_id != who

    @rule()
    def coordinator_dies(self) -> None:
        self.store.client.delete(keys.SWEEP_RUN)
        self.run_id, self.busy = "", False

    @rule(calls=st.integers(1, 4), floor=st.sampled_from([0, 3]))
    def take_budget(self, calls: int, floor: int) -> None:
        before = float(self.store.client.hget(keys.budget("b"), "tokens") or BUCKET.burst)
        tag, *wait = self.store.one(steps.take_budget(BUCKET, calls, floor))
        if tag == "granted":
            self.drawn += calls
            return
        assert before < calls + floor, "a call was refused although the bucket had it"
        # Exactly the wait it named is enough.
        self.rest(int(wait[0]))
        assert self.store.one(steps.take_budget(BUCKET, calls, floor)) == ("granted",)
        self.drawn += calls

    def rest(self, ms: int) -> None:
        at = self.store.client.hget(keys.budget("b"), "at")
        self.store.client.hset(keys.budget("b"), "at", int(at) - ms)
        self.waited += ms / 1000

    @invariant()
    def the_bucket_never_gives_more_than_its_rate(self) -> None:
        rested = self.server_s() - self.began + self.waited
        assert self.drawn <= BUCKET.burst + BUCKET.per_second * rested + 0.01


@pytest.mark.parametrize(("kind", "examples"), STORES)
def test_every_history_of_the_small_scripts_follows_the_model(
    kind: str, examples: int, request: pytest.FixtureRequest
) -> None:
    store = Store(client_of(kind, request))
    run(lambda: LocksMachine(store), examples, scripts=SCRIPTS)
