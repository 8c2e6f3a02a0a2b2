"""Any history of the list of starts: the newest, each once, however often a client sent it."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from muster import blueprint, keys, steps
from muster.model import Assignment, Cause, Via
from muster.store import Store
from tests.simulation.machines import STORES, client_of, of, run

SCRIPTS = of("muster/lua", "note_start")
#: Few, so that a short history goes over it.
KEPT = 5


class StartsMachine(RuleBasedStateMachine):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.store.client.flushall()
        self.noted: list[Assignment] = []  # newest first, as often as it was sent
        self.moment = 0

    @rule(
        user=st.sampled_from(["u1", "u|2"]),
        epoch=st.integers(1, 3),
        via=st.sampled_from(Via),
        cause=st.sampled_from(Cause),
        times=st.integers(1, 2),
    )
    def note_start(self, user: str, epoch: int, via: Via, cause: Cause, times: int) -> None:
        given = Assignment(user, epoch, via, cause, issued_at_ms=epoch, command_id="c")
        for _ in range(times):
            assert self.store.one(steps.note_start(given)) == ("noted",)
        self.noted = ([given] * times + self.noted)[:KEPT]

    @invariant()
    def the_newest_are_kept_and_each_is_told_once(self) -> None:
        assert self.store.client.llen(keys.starts()) == len(self.noted)
        first = {(given.user, given.epoch): given for given in self.noted}  # the oldest of a pair counts
        entries = self.store.one(steps.recent_starts(KEPT))
        told = {(e.user, e.epoch): (e.via, e.cause, e.issued_at_ms) for e in entries}
        assert len(told) == len(entries)
        assert told == {one: (g.via.value, g.cause.value, g.issued_at_ms) for one, g in first.items()}
        moments = [entry.ready_at_ms for entry in entries]
        assert moments == sorted(moments, reverse=True)
        if moments:
            assert moments[0] >= self.moment
            self.moment = moments[-1]


@pytest.mark.parametrize(("kind", "examples"), STORES)
def test_every_history_of_the_list_of_starts_follows_the_model(
    kind: str, examples: int, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blueprint, "STARTS_KEPT", KEPT)
    store = Store(client_of(kind, request))
    run(lambda: StartsMachine(store), examples, scripts=SCRIPTS)
