"""Any history of the API's scripts: commands that are sent again, and the record of changes."""

from __future__ import annotations

import json
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from api import fleet
from api.audit import UNKNOWN, Asked, Audit
from muster import keys
from muster.commands import Action, Command, from_ms
from muster.store import Step, Store
from tests.simulation.machines import STORES, client_of, of, run

SCRIPTS = of("api/lua", "accept_command", "end_audit")
T = TypeVar("T")
users = st.sampled_from(["u1", "u2"])
recent = st.integers(0, 3)


@dataclass
class Change:
    """A change as its person sees it: asked for, and perhaps answered."""

    asked: Asked
    result: str = UNKNOWN


class AtOnce:
    """The asynchronous face of a store, without a loop: nothing here ever waits."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def one(self, step: Step[T]) -> T:
        return self._store.one(step)


def done(story: Coroutine[Any, Any, T]) -> T:
    try:
        story.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("it waits for something")


class ApiMachine(RuleBasedStateMachine):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.store.client.flushall()
        self.audit = Audit(AtOnce(store))  # type: ignore[arg-type]
        self.known: dict[tuple[str, str], tuple[int, dict[str, str]]] = {}  # (user, key) -> (moment, command)
        self.latest = 0
        self.commands = 0
        self.changes: list[Change] = []

    @rule(user=users, key=st.sampled_from(["", "k1", "k2"]), action=st.sampled_from(Action))
    def accept_command(self, user: str, key: str, action: Action) -> None:
        self.commands += 1
        asked = {"action": action.value, "credentials_ref": "", "reason": "a b"}
        fields: dict[str, Any] = asked | {"command_id": f"c{self.commands}"}
        fresh = Command(user_id=user, issued_at=from_ms(0), **fields)
        tag, moment, *first = self.store.one(fleet._accept(fresh, asked, key))
        if key and (user, key) in self.known:
            issued, remembered = self.known[user, key]
            assert (tag, int(moment), json.loads(first[0])) == ("repeated", issued, remembered)
            return
        assert (tag, first) == ("new", [])
        assert int(moment) >= self.latest, "a newer command is never older than one before it"
        self.latest = int(moment)
        if key:
            self.known[user, key] = self.latest, fields

    @precondition(lambda self: self.known)
    @rule(back=recent)
    def a_key_runs_out(self, back: int) -> None:
        user, key = sorted(self.known)[back % len(self.known)]
        del self.known[user, key]
        for name in self.store.client.scan_iter(f"api:idempotency:{{{user}}}:*"):
            if self.remembered(name) not in [
                kept for (who, _), (_, kept) in self.known.items() if who == user
            ]:
                self.store.client.delete(name)

    def remembered(self, name: str) -> dict[str, str]:
        return dict(json.loads(self.store.client.get(name).split(" ", 1)[1]))

    @rule(user=users)
    def somebody_asks_for_a_change(self, user: str) -> None:
        asked = Asked("ann", "operator", "stop", f"workers/{user}", f"reason {len(self.changes)}")
        self.changes.append(Change(done(self.audit.begin(asked))))

    @precondition(lambda self: self.changes)
    @rule(back=recent, result=st.sampled_from([200, 503]))
    def end_audit(self, back: int, result: int) -> None:
        """Also of one that has its result: a client that lost the answer sends the same again."""
        change = self.changes[-1 - back % len(self.changes)]
        if change.result == UNKNOWN:
            change.result = str(result)
        done(self.audit.end(change.asked, int(change.result)))

    @precondition(lambda self: self.changes)
    @rule(back=recent)
    def the_intent_is_trimmed(self, back: int) -> None:
        change = self.changes[-1 - back % len(self.changes)]
        if self.store.client.xdel(keys.AUDIT, change.asked.id):
            assert change.result == UNKNOWN, "an intent was left beside its result"
            done(self.audit.end(change.asked, 200))
            change.result = "200"

    @invariant()
    def every_command_with_a_key_is_remembered_and_no_other(self) -> None:
        names = list(self.store.client.scan_iter("api:idempotency:*"))
        assert len(names) == len(self.known)
        assert all(0 < self.store.client.ttl(name) <= fleet.IDEMPOTENCY_S for name in names)

    @invariant()
    def one_entry_stands_for_one_change(self) -> None:
        told = [(entry.reason, entry.result) for entry in done(self.audit.page("", 1000)).entries]
        assert sorted(told) == sorted((change.asked.reason, change.result) for change in self.changes)


@pytest.mark.parametrize(("kind", "examples"), STORES)
def test_every_history_of_the_scripts_of_the_api_follows_the_model(
    kind: str, examples: int, request: pytest.FixtureRequest
) -> None:
    store = Store(client_of(kind, request))
    run(lambda: ApiMachine(store), examples, scripts=SCRIPTS)
