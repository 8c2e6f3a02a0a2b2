"""The broker session against a scripted broker: what it does with each order, whatever happens around it."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import fakeredis
import pytest

from muster import steps
from muster.brokers.port import (
    Account,
    BadCredentials,
    BrokerAway,
    Credentials,
    NewOrder,
    Opened,
    Order,
    OrderRejected,
    SlotTaken,
    Update,
)
from muster.clock import FakeClock
from muster.errors import LostLease, TryLater
from muster.model import Assignment
from muster.order_steps import SEND_WITHIN, cancel_order, read_inbox, record_check
from muster.orders import parse_check
from muster.steps import ms
from muster.store import Store
from tests.order_stand import REF, accept, make_older, record, told, wanted
from worker.broker import BrokerSession, Parts, SqsChecks
from worker.inbox import Check, Inbox
from worker.lease import Lease
from worker.link import Link, Stopping
from worker.session import Context, Preloads, SessionRefused

NO_WAIT = timedelta(milliseconds=1)


class Stop(threading.Event):
    """A wish to stop on which waiting costs no real time; it is granted after `patience` waits."""

    def __init__(self, clock: FakeClock, patience: int = 50) -> None:
        super().__init__()
        self._clock = clock
        self._left = patience
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout or 0.0)
        self._clock.advance(timeout or 0.0)
        self._left -= 1
        if self._left <= 0:
            self.set()
        return self.is_set()


class ScriptedBroker:
    """Holds orders. `trouble` is raised first, one per call; `lose` loses answers after the deed."""

    def __init__(self) -> None:
        self.held: dict[str, Order] = {}
        self.calls: list[str] = []
        self.trouble: deque[Exception] = deque()
        self.lose = 0
        self.before_place: Callable[[], None] = lambda: None
        self.said: deque[Any] = deque()
        self.closed = threading.Event()

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.trouble:
            raise self.trouble.popleft()

    def connect(self, credentials: Credentials) -> Account:
        raise NotImplementedError

    def account(self) -> Account:
        raise NotImplementedError

    def place(self, order: NewOrder) -> Order:
        self.before_place()
        self._call(f"place {order.client_order_id}")
        held = self.held.setdefault(order.client_order_id, told(order.client_order_id, "accepted"))
        if self.lose:
            self.lose -= 1
            raise BrokerAway("the answer was lost")
        return held

    def cancel(self, client_order_id: str) -> Order | None:
        self._call(f"cancel {client_order_id}")
        if client_order_id in self.held:
            self.held[client_order_id] = told(client_order_id, "cancelled")
        return self.held.get(client_order_id)

    def get(self, client_order_id: str) -> Order | None:
        self._call(f"get {client_order_id}")
        return self.held.get(client_order_id)

    def open_orders(self) -> list[Order]:
        self._call("open_orders")
        return [order for order in self.held.values() if not order.status.final]

    def updates(self, timeout: timedelta) -> Update | Opened | None:
        if not self.said:
            self.closed.wait(0.01)
            return None
        said = self.said.popleft()
        if isinstance(said, Exception):
            raise said
        return said

    def close(self) -> None:
        self.closed.set()


class Desk:
    """A session's inbox on a store, with a scripted broker and a clock that only the test moves."""

    def __init__(self, store: Store, broker: ScriptedBroker, given: Assignment, patience: int = 50) -> None:
        self.store, self.broker, self.given = store, broker, given
        self.clock = FakeClock()
        self.lease = Lease(self.clock)
        self.lease.renewed(self.clock.monotonic())
        self.stopping = Stop(self.clock, patience)
        self.phases: list[tuple[str, str]] = []
        self.ctx = Context(given, self.lease, self.stopping, beat_now=self._beat)
        self.checks: list[Check] = []
        self.checks_away = False
        self.inbox = Inbox(self.ctx, store, broker, self._send, Link(self.ctx, self.clock), self.clock)

    def _beat(self) -> None:
        self.lease.renewed(self.clock.monotonic())
        self.phases.append((self.ctx.state["phase"], self.ctx.state["reason"]))

    def _send(self, checks: Sequence[Check]) -> None:
        if self.checks_away:
            raise TryLater("the queue is away")
        self.checks += checks

    def serve(self) -> None:
        self.inbox.serve(NO_WAIT)

    def left(self) -> list[str]:
        return [entry.order_id for entry in self.store.one(read_inbox("u1", "0-0", NO_WAIT))]


@pytest.fixture
def store() -> Iterator[Store]:
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
    yield Store(client)
    client.close()


@pytest.fixture
def desk(store: Store) -> Desk:
    return Desk(store, ScriptedBroker(), wanted(store))


def test_orders_are_sent_in_their_order_recorded_checked_and_settled(desk: Desk) -> None:
    for name in ("o1", "o2", "o3"):
        accept(desk.store, name)
    desk.serve()
    assert desk.broker.calls == ["place o1", "place o2", "place o3"]
    assert [record(desk.store, name).status for name in ("o1", "o2", "o3")] == ["accepted"] * 3
    assert [parse_check(check.body).order_id for check in desk.checks] == ["o1", "o2", "o3"]
    assert parse_check(desk.checks[0].body).credentials_ref == REF
    assert len({check.dedup_id for check in desk.checks}) == 3
    assert desk.left() == []
    assert desk.ctx.state["orders"] == 3


def test_sending_is_on_record_before_the_broker_is_called(desk: Desk) -> None:
    accept(desk.store, "o1")
    seen: list[str] = []
    desk.broker.before_place = lambda: seen.append(record(desk.store, "o1").status)
    desk.serve()
    assert seen == ["sending"]


def test_a_lost_answer_is_asked_for_and_the_order_is_not_sent_again(desk: Desk) -> None:
    accept(desk.store, "o1")
    desk.broker.lose = 1
    desk.serve()
    assert desk.broker.calls == ["place o1", "get o1"]
    assert record(desk.store, "o1").status == "accepted"


def test_a_broker_that_is_away_is_waited_for_and_the_phase_says_so(desk: Desk) -> None:
    accept(desk.store, "o1")
    desk.broker.trouble += [BrokerAway("status 500"), BrokerAway("slow down", timedelta(seconds=7))]
    desk.serve()
    assert desk.broker.calls == ["place o1", "get o1", "get o1", "place o1"]
    assert desk.phases == [("connecting", "orders away: status 500"), ("ready", "")]
    assert desk.stopping.pauses[1] >= 7


def test_a_lease_that_ran_out_stops_the_next_attempt(desk: Desk) -> None:
    accept(desk.store, "o1")
    desk.clock.advance(26)
    with pytest.raises(LostLease):
        desk.serve()
    assert desk.broker.calls == []
    assert (record(desk.store, "o1").status, desk.left()) == ("sending", ["o1"])


def test_a_fenced_worker_sends_nothing(desk: Desk) -> None:
    accept(desk.store, "o1")
    desk.store.one(steps.begin_stop("u1", 2_000, "stop"))
    with pytest.raises(LostLease, match="fenced"):
        desk.serve()
    assert desk.broker.calls == []
    assert record(desk.store, "o1").status == "queued"


def test_a_refused_order_ends_with_the_brokers_reason_and_the_next_one_is_sent(desk: Desk) -> None:
    accept(desk.store, "o1")
    accept(desk.store, "o2")
    desk.broker.trouble.append(OrderRejected("insufficient buying power"))
    desk.serve()
    first = record(desk.store, "o1")
    assert (first.status, first.final, first.reason) == ("rejected", True, "insufficient buying power")
    assert record(desk.store, "o2").status == "accepted"
    assert len(desk.checks) == 2


def test_an_order_too_old_to_be_sent_expires_unsent(desk: Desk) -> None:
    accept(desk.store, "o1")
    make_older(desk.store, "o1", ms(SEND_WITHIN) + 1)
    desk.serve()
    assert desk.broker.calls == []
    found = record(desk.store, "o1")
    assert (found.status, found.final) == ("expired", True)
    assert "order again" in str(found.reason)


def test_an_old_order_that_a_predecessor_had_sent_is_found_not_expired(desk: Desk) -> None:
    accept(desk.store, "o1")
    desk.broker.lose = 10**6
    desk.stopping._left = 1
    with pytest.raises(Stopping):
        desk.serve()
    make_older(desk.store, "o1", ms(SEND_WITHIN) + 1)
    successor = Desk(desk.store, desk.broker, desk.given)
    successor.serve()
    assert record(desk.store, "o1").status == "accepted"
    assert desk.broker.calls.count("place o1") == 1


def test_told_to_stop_while_the_broker_is_away_the_order_is_left_to_the_successor(store: Store) -> None:
    given = wanted(store)
    first = Desk(store, ScriptedBroker(), given, patience=3)
    accept(store, "o1")
    first.broker.trouble += [BrokerAway("down")] * 3
    with pytest.raises(Stopping):
        first.serve()
    assert (record(store, "o1").status, first.left(), first.checks) == ("sending", ["o1"], [])
    second = Desk(store, first.broker, replace(given, epoch=given.epoch + 1))
    second.serve()
    assert first.broker.calls[-2:] == ["get o1", "place o1"]
    assert (record(store, "o1").status, second.left(), len(second.checks)) == ("accepted", [], 1)


def test_a_successor_settles_what_was_executed_and_not_checked(store: Store) -> None:
    given = wanted(store)
    first = Desk(store, ScriptedBroker(), given)
    first.checks_away = True
    accept(store, "o1")
    first.serve()
    assert (record(store, "o1").status, first.left()) == ("accepted", ["o1"])
    second = Desk(store, first.broker, given)
    second.serve()
    assert first.broker.calls == ["place o1"]
    assert (second.left(), [check.order_id for check in second.checks]) == ([], ["o1"])


def test_orders_go_on_while_the_queue_of_checks_is_away_and_are_checked_when_it_is_back(desk: Desk) -> None:
    desk.checks_away = True
    accept(desk.store, "o1")
    desk.serve()
    accept(desk.store, "o2")
    desk.serve()
    assert desk.broker.calls == ["place o1", "place o2"]
    desk.checks_away = False
    desk.clock.advance(60)
    desk.lease.renewed(desk.clock.monotonic())
    desk.serve()
    assert [check.order_id for check in desk.checks] == ["o1", "o2"]
    assert desk.left() == []


def test_a_cancel_goes_to_the_broker_and_its_answer_is_recorded(desk: Desk) -> None:
    accept(desk.store, "o1")
    desk.serve()
    desk.store.one(cancel_order("u1", "o1"))
    desk.serve()
    assert desk.broker.calls == ["place o1", "cancel o1"]
    assert record(desk.store, "o1").status == "cancelled"
    assert len({check.dedup_id for check in desk.checks}) == 2, "the second check must not be swallowed"


def differences(out: str) -> list[dict[str, Any]]:
    """The lines that the metric is made of."""
    return [said for said in map(json.loads, out.splitlines()) if "_aws" in said]


def test_a_report_that_a_check_has_contradicted_is_counted_published_and_told(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker comes second: its answer was on its way while the check heard of a correction."""
    accept(desk.store, "o1")
    desk.broker.held["o1"] = told("o1", "filled", "10")
    truth = told("o1", "cancelled", "4")
    desk.broker.before_place = lambda: desk.store.one(record_check("u1", "o1", truth, "verified")) and None
    desk.serve()
    (line,) = differences(capsys.readouterr().out)
    assert (line["outcome"], line["service"], line["FillChecks"]) == ("differs", "worker", 1)
    assert desk.ctx.state["differs"] == 1
    found = record(desk.store, "o1")
    assert (found.status, found.filled_qty, found.differs) == ("cancelled", "4", "filled 10")


def test_an_order_cancelled_in_the_inbox_is_never_sent(desk: Desk) -> None:
    accept(desk.store, "o1")
    desk.store.one(cancel_order("u1", "o1"))
    desk.serve()
    assert desk.broker.calls == []
    assert (record(desk.store, "o1").status, desk.left()) == ("cancelled", [])


def test_an_entry_nobody_understands_is_dropped_and_the_next_is_executed(desk: Desk) -> None:
    desk.store.client.xadd("worker:inbox:{u1}", {"do": "explode"})
    desk.store.client.xadd("worker:inbox:{u1}", {"nonsense": "x"})
    accept(desk.store, "o1")
    desk.serve()
    assert (desk.broker.calls, desk.left()) == (["place o1"], [])


def test_checks_go_out_in_one_call_with_their_own_ids_and_a_partial_refusal_is_no_success() -> None:
    calls: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = [{}, {"Failed": [{"Id": "0", "Message": "throttled"}]}]

    class Sqs:
        def send_message_batch(self, **call: Any) -> dict[str, Any]:
            calls.append(call)
            return answers.pop(0)

    send = SqsChecks(Sqs, "queue")
    checks = [Check("o1", "o1.5-0", "{}"), Check("o2", "o2.6-0", "{}")]
    send(checks)
    with pytest.raises(TryLater, match="throttled"):
        send(checks)
    sent = [(entry["MessageGroupId"], entry["MessageDeduplicationId"]) for entry in calls[0]["Entries"]]
    assert (calls[0]["QueueUrl"], sent) == ("queue", [("o1", "o1.5-0"), ("o2", "o2.6-0")])


# -- the whole session: open, run, close, with its listener


class Whole:
    """A `BrokerSession` on a scripted broker, in its own threads."""

    def __init__(self, store: Store, broker: ScriptedBroker, given: Assignment) -> None:
        self.desk = Desk(store, broker, given)
        self.ctx = Context(given, self.desk.lease, threading.Event(), beat_now=self._beat)
        self.phases: list[str] = []
        self.reads = 0
        self.trouble: deque[Exception] = deque()
        self.session = BrokerSession(
            lambda: Parts(
                store, self._credentials, lambda _: self._connect(broker), self.desk._send, self.desk.clock
            )
        )

    def _beat(self) -> None:
        self.phases.append(f"{self.ctx.state['phase']} {self.ctx.state['reason']}".strip())

    def _credentials(self, reference: str) -> Credentials:
        assert reference == REF
        self.reads += 1
        return Credentials("paper", "key", "canary-secret", "http://x")

    def _connect(self, broker: ScriptedBroker) -> ScriptedBroker:
        if self.trouble:
            self.desk.lease.renewed(self.desk.clock.monotonic())
            raise self.trouble.popleft()
        return broker

    def run_until(self, done: Callable[[], bool]) -> None:
        runner = threading.Thread(target=self.session.run, args=(self.ctx,))
        runner.start()
        deadline = threading.Event()
        for _ in range(3000):
            if done():
                break
            deadline.wait(0.01)
        self.ctx.stopping.set()
        runner.join(30)
        assert not runner.is_alive()
        assert done()


def test_what_is_built_while_waiting_serves_the_claim_and_knows_no_credentials(store: Store) -> None:
    whole = Whole(store, ScriptedBroker(), wanted(store))
    build, built = whole.session._build, []
    whole.session._build = lambda: built.append(build()) or built[-1]  # type: ignore[func-returns-value]
    assert isinstance(whole.session, Preloads)
    whole.session.preload()
    assert (len(built), whole.reads) == (1, 0)
    whole.desk.broker.said.append(Opened())
    whole.session.open(whole.ctx)
    whole.session.close(whole.ctx)
    assert (len(built), whole.reads) == (1, 1)


def test_open_returns_when_the_stream_is_open_and_open_orders_are_known(store: Store) -> None:
    given = wanted(store)
    before = Desk(store, ScriptedBroker(), given)
    for name in ("still-open", "ended"):
        accept(store, name)
    before.serve()
    broker = before.broker
    broker.held["ended"] = told("ended", "filled", "10")
    broker.held["stranger"] = told("stranger", "accepted")
    whole = Whole(store, broker, given)
    broker.said += [
        SlotTaken("the predecessor's socket"),
        Opened(),
        Update("fill", told("still-open", "partial", "4"), told("x", "filled").updated_at),
    ]
    whole.session.open(whole.ctx)
    assert record(store, "ended").status == "filled"
    assert whole.phases == ["connecting stream away: the predecessor's socket", "ready"]
    whole.run_until(lambda: record(store, "still-open").status == "partial")
    whole.session.close(whole.ctx)
    assert broker.closed.is_set()


def test_a_lost_stream_is_reopened_and_what_was_missed_is_read(store: Store) -> None:
    broker = ScriptedBroker()
    whole = Whole(store, broker, wanted(store))
    broker.said.append(Opened())
    whole.session.open(whole.ctx)
    accept(store, "o1")

    def filled_while_nobody_listened() -> bool:
        status = record(store, "o1").status
        if status == "accepted" and broker.held["o1"].status == "accepted":
            broker.held["o1"] = told("o1", "filled", "10")
            broker.said += [BrokerAway("cut"), Opened()]
        return status == "filled"

    whole.run_until(filled_while_nobody_listened)
    whole.session.close(whole.ctx)
    assert whole.phases == ["connecting stream away: cut", "ready"]


def test_an_update_that_a_check_has_contradicted_is_counted_too(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Whole(store, ScriptedBroker(), wanted(store))
    whole.desk.broker.said.append(Opened())
    whole.session.open(whole.ctx)
    accept(store, "o1")
    whole.desk.serve()
    store.one(record_check("u1", "o1", told("o1", "cancelled", "4"), "verified"))
    for _ in range(2):
        whole.desk.broker.said.append(
            Update("fill", told("o1", "filled", "10"), told("o1", "filled").updated_at)
        )
    whole.run_until(lambda: whole.ctx.state.get("differs") == 1 and not whole.desk.broker.said)
    whole.session.close(whole.ctx)
    assert len(differences(capsys.readouterr().out)) == 1, "an order differs once"
    assert whole.ctx.state["differs"] == 1


def test_an_order_that_ends_after_its_last_check_gets_one_more(store: Store) -> None:
    whole = Whole(store, ScriptedBroker(), wanted(store))
    broker, checks = whole.desk.broker, whole.desk.checks
    broker.said.append(Opened())
    whole.session.open(whole.ctx)
    accept(store, "gtc")
    whole.desk.serve()
    assert len(checks) == 1
    store.one(record_check("u1", "gtc", told("gtc", "accepted"), "unverified", "not final after 30 looks"))
    for _ in range(2):
        broker.said.append(Update("fill", told("gtc", "filled", "10"), told("gtc", "filled").updated_at))
    whole.run_until(lambda: len(checks) > 1 and not broker.said and not whole.desk.left())
    whole.session.close(whole.ctx)
    assert [parse_check(check.body).order_id for check in checks] == ["gtc", "gtc"]
    assert len({check.dedup_id for check in checks}) == 2, "the queue must not take it for the first"


def test_a_last_check_that_was_not_sent_is_the_successors(store: Store) -> None:
    given = wanted(store)
    first = Whole(store, ScriptedBroker(), given)
    first.desk.broker.said.append(Opened())
    first.session.open(first.ctx)
    accept(store, "gtc")
    first.desk.serve()
    store.one(record_check("u1", "gtc", told("gtc", "accepted"), "unverified", "not final after 30 looks"))
    filled = told("gtc", "filled", "10")
    first.desk.broker.said.append(Update("fill", filled, filled.updated_at))
    for _ in range(3000):
        if record(store, "gtc").final:
            break
        first.desk.broker.closed.wait(0.01)
    first.session.close(first.ctx)
    assert first.desk.left() == ["gtc"], "it ended before its own thread looked into the inbox"
    second = Desk(store, first.desk.broker, replace(given, epoch=given.epoch + 1))
    second.serve()
    assert (second.left(), [check.order_id for check in second.checks]) == ([], ["gtc"])


@pytest.mark.parametrize("where", ["connect", "stream"])
def test_bad_credentials_refuse_the_session_with_the_reason(store: Store, where: str) -> None:
    whole = Whole(store, ScriptedBroker(), wanted(store))
    refused = BadCredentials("the broker does not accept this key (status 401)")
    (whole.trouble if where == "connect" else whole.desk.broker.said).append(refused)
    with pytest.raises(SessionRefused, match="does not accept this key"):
        whole.session.open(whole.ctx)
    whole.session.close(whole.ctx)


def test_a_user_without_credentials_is_refused_before_anything_is_built(store: Store) -> None:
    given = wanted(store, credentials_ref="")

    def build() -> Parts:
        raise AssertionError("built")

    ctx = Desk(store, ScriptedBroker(), given).ctx
    with pytest.raises(SessionRefused, match="credentials_ref"):
        BrokerSession(build).open(ctx)


def test_credentials_are_never_in_what_is_published_or_logged(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Whole(store, ScriptedBroker(), wanted(store))
    whole.desk.broker.said.append(Opened())
    whole.session.open(whole.ctx)
    accept(store, "o1")
    whole.run_until(lambda: bool(whole.desk.checks))
    whole.session.close(whole.ctx)
    seen = capsys.readouterr().out + str(whole.desk.checks) + whole.ctx.state_json()
    for key in store.client.keys("*"):
        seen += str(store.client.dump(key))
    assert "canary-secret" not in seen


def test_a_store_that_is_away_at_the_end_is_left_to_the_successor(store: Store) -> None:
    whole = Whole(store, ScriptedBroker(), wanted(store))
    whole.desk.broker.said.append(Opened())
    whole.session.open(whole.ctx)
    accept(store, "o1")
    sent = whole.desk.checks

    def away_after_the_check(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*steps: Any) -> Any:
            if sent:
                whole.ctx.stopping.set()
                raise TryLater("Valkey is away")
            return call(*steps)

        return called

    with pytest.MonkeyPatch.context() as away:
        for name in ("run", "one"):
            away.setattr(store, name, away_after_the_check(getattr(store, name)))
        whole.session.run(whole.ctx)
        whole.session.close(whole.ctx)
    assert [check.order_id for check in sent] == ["o1", "o1"], "sent again with the same id"
    assert len({check.dedup_id for check in sent}) == 1
    assert whole.desk.left() == ["o1"]


def test_a_listener_that_fails_ends_the_session_with_its_error(store: Store) -> None:
    whole = Whole(store, ScriptedBroker(), wanted(store))
    whole.desk.broker.said.append(Opened())
    whole.session.open(whole.ctx)
    whole.desk.broker.said.append(ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        whole.session.run(whole.ctx)
    whole.session.close(whole.ctx)
