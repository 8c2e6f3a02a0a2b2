"""Lists of a fleet: read once for all viewers, live by events, early for a large fleet; and bulk commands."""

from __future__ import annotations

import json
import threading

import pytest
from moto import mock_aws

from api import bulk, roster
from api.fleet import Fleet
from api.roster import Roster
from api.source import BulkOrder, Sort, StartKind, WorkerQuery
from muster import keys, steps
from muster.clock import SystemClock
from muster.commands import Action
from muster.errors import BadCommand, Refused, TryLater
from muster.model import Assignment, Cause, Phase, Via
from muster.store import Store
from tests.api_stand import begin, commands_in, run_worker, settings_with_queues, sqs_client


class Counting(Store):
    """Counts round trips."""

    trips = 0

    def run(self, *steps_):
        self.trips += 1
        return super().run(*steps_)


class HandClock(SystemClock):
    at = 0.0

    def monotonic(self) -> float:
        return self.at


@pytest.fixture
def store(valkey):
    return Counting(valkey)


@pytest.fixture
def clock():
    return HandClock()


@pytest.fixture
def fleet(store):
    with mock_aws():
        sqs = sqs_client()
        fleet = Fleet(store, sqs, settings_with_queues(sqs))
        fleet.sqs = sqs
        yield fleet
        fleet.close()


def ready(store, *users):
    for user in users:
        run_worker(store, begin(store, user))


def ids(page):
    return [worker.user_id for worker in page.workers]


def test_many_viewers_cost_one_reading(store, clock):
    ready(store, "a", "b")
    seen = Roster(store, clock)
    seen.page(WorkerQuery())
    before = store.trips
    for query in (WorkerQuery(), WorkerQuery(q="a"), WorkerQuery(sort=Sort.SINCE_DOWN)):
        seen.page(query)
    assert store.trips == before


def test_a_touched_user_is_read_anew_and_nobody_else(store, clock):
    ready(store, "a", "b")
    seen = Roster(store, clock)
    assert seen.counts()[Phase.READY] == 2
    store.one(steps.begin_stop("a", 2_000, "c2"))
    store.one(steps.begin_stop("b", 2_000, "c3"))
    assert seen.counts()[Phase.READY] == 2
    seen.touch("a")
    assert seen.counts()[Phase.READY] == 1
    clock.at += 2
    assert seen.counts()[Phase.READY] == 0


def test_a_forgotten_user_leaves_the_list(store, clock):
    ready(store, "a", "b")
    seen = Roster(store, clock)
    assert ids(seen.page(WorkerQuery())) == ["a", "b"]
    store.one(steps.index_remove("a"))
    seen.touch("a")
    assert ids(seen.page(WorkerQuery())) == ["b"]
    store.one(steps.index_remove("b"))
    clock.at += 2
    assert ids(seen.page(WorkerQuery())) == []


def test_what_happens_during_a_whole_reading_is_not_lost(store, clock, monkeypatch):
    ready(store, "a")
    seen = Roster(store, clock)
    seen.counts()
    clock.at += 2
    read_chunk = seen._read_chunk

    def and_then_it_stops(users):
        found = read_chunk(users)
        store.one(steps.begin_stop("a", 2_000, "c2"))
        seen.touch("a")
        return found

    monkeypatch.setattr(seen, "_read_chunk", and_then_it_stops)
    assert seen.counts()[Phase.READY] == 0


def test_the_first_page_of_a_large_fleet_waits_for_nobody(store, clock, monkeypatch):
    monkeypatch.setattr(roster, "_LARGE", 3)
    ready(store, "a", "b", "c", "d")
    seen = Roster(store, clock)
    may_read = threading.Event()
    read_all = seen._read_all

    def slowly():
        may_read.wait(30)
        read_all()

    monkeypatch.setattr(seen, "_read_all", slowly)
    early = seen.page(WorkerQuery(limit=2))
    assert (ids(early), early.total, dict(early.counts)) == (["a", "b"], 4, {})
    may_read.set()
    second = seen.page(WorkerQuery(limit=2, cursor=early.next_cursor))
    assert (ids(second), second.counts[Phase.READY]) == (["c", "d"], 4)


def test_a_store_that_is_away_is_said_and_not_covered_by_an_old_list(store, clock, monkeypatch):
    ready(store, "a")
    seen = Roster(store, clock)
    seen.counts()
    clock.at += 60

    def away(*_):
        raise TryLater("away")

    monkeypatch.setattr(store, "run", away)
    with pytest.raises(TryLater):
        seen.counts()


def test_starts_are_told_apart_and_a_heal_counts_from_the_loss(fleet, store):
    given = begin(store, "warm-one", issued_at_ms=1)
    store.one(steps.note_start(Assignment("warm-one", given.epoch, Via.WARM, Cause.START, 1, "c")))
    first = begin(store, "broken")
    run_worker(store, first)
    store.one(steps.task_stopped("broken", "task-broken", "killed"))
    repair = begin(store, "broken", Cause.REPAIR)
    run_worker(store, repair)
    store.one(steps.note_start(repair))
    store.one(steps.note_start(repair))  # a client sent it twice
    lost_at = next(e.at_ms for e in store.one(steps.history("broken")) if e.event == "task stopped")
    healed, warm = fleet.starts(10)
    assert (healed.user_id, healed.kind, warm.kind) == ("broken", StartKind.REPAIR, StartKind.WARM)
    assert healed.heal_ms == round(healed.at.timestamp() * 1000) - lost_at >= healed.latency_ms
    assert warm.heal_ms is None
    assert len(store.client.lrange(keys.starts(), 0, -1)) == 3


def order(fleet, action=Action.STOP, *, phase=None, q="", selection=None, reason="tests"):
    chosen = selection or bulk.selection_of(fleet.matching(phase, q))
    return BulkOrder(action, phase, q, chosen, reason)


def test_a_bulk_stop_is_for_the_filtered_only_and_a_repeat_for_the_same(fleet, store):
    ready(store, "team-a1", "team-a2", "other")
    asked = order(fleet, q="team-a")
    assert fleet.bulk(asked, "k1").users == 2
    sent = [json.loads(body) for body in commands_in(fleet.sqs, fleet._settings)]
    assert {(said["user_id"], said["action"], said["reason"]) for said in sent} == {
        ("team-a1", "stop", "tests"),
        ("team-a2", "stop", "tests"),
    }
    assert len(sent) == 2
    ready(store, "team-a3")
    again = fleet.bulk(asked, "k1")
    assert (again.users, again.repeated) == (2, True)
    with pytest.raises(Refused, match="another bulk command"):
        fleet.bulk(order(fleet, Action.RESTART, q="team-a"), "k1")


def test_a_set_that_changed_since_it_was_seen_asks_again(fleet, store):
    ready(store, "team-a1", "team-a2")
    asked = order(fleet, q="team-a")
    store.one(steps.index_remove("team-a1"))
    ready(store, "team-a9")  # as many, but not the same
    fleet._roster.touch("team-a1")
    fleet._roster.touch("team-a9")
    with pytest.raises(Refused, match="2 when you looked, 2 now"):
        fleet.bulk(asked, "k2")
    assert commands_in(fleet.sqs, fleet._settings) == []
    with pytest.raises(BadCommand, match="Idempotency-Key"):
        fleet.bulk(asked, "")


def test_a_bulk_that_broke_off_is_finished_by_its_repeat(fleet, store, monkeypatch):
    users = [f"u{number:02}" for number in range(25)]
    ready(store, *users)
    asked = order(fleet)
    send = fleet._commands.send

    def first_ten_only(commands):
        if commands[0].user_id != "u00":
            raise TryLater("the queue is away")
        send(commands)

    monkeypatch.setattr(fleet._commands, "send", first_ten_only)
    with pytest.raises(TryLater):
        fleet.bulk(asked, "k3")
    monkeypatch.setattr(fleet._commands, "send", send)
    assert fleet.bulk(asked, "k3").users == 25
    sent = commands_in(fleet.sqs, fleet._settings)
    assert {json.loads(body)["user_id"] for body in sent} == set(users)
