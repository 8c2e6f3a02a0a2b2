"""Fill checks: what the broker answers becomes the record, the next look is planned, trouble is visible."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest

from lambdas import wiring
from lambdas.order_tasks.handler import handler
from muster.blueprint import ORDER_TASKS
from muster.brokers.port import BadCredentials, BrokerAway, Credentials, Order, OrderStatus
from muster.errors import BadCommand, TryLater
from muster.order_steps import begin_order, check_body, report_order, report_refused
from muster.orders import (
    AWAY_PAUSE,
    MOST_LOOKS,
    Checked,
    FillCheck,
    Look,
    OrderDeps,
    check_fill,
    parse_check,
)
from muster.settings import Settings
from muster.store import Store
from tests.order_stand import REF, accept, record, told, wanted


@dataclass
class Answering:
    """A broker as a check needs it: answers in turn, the last one for ever; an error is raised."""

    answers: list[Any] = field(default_factory=list)
    asked: int = 0
    closed: int = 0

    def get(self, order_id: str) -> Order | None:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        self.closed += 1


@dataclass
class Desk:
    store: Store
    broker: Answering
    planned: list[tuple[FillCheck, timedelta]] = field(default_factory=list)
    plan_away: bool = False

    def deps(self) -> OrderDeps:
        return OrderDeps(self.store, self._credentials, lambda _: self.broker, self._plan)  # type: ignore[arg-type]

    def _credentials(self, reference: str) -> Credentials:
        if reference != REF:
            raise BadCredentials(f"there is no secret {reference!r}")
        return Credentials("paper", "k", "s", "http://x")

    def _plan(self, check: FillCheck, pause: timedelta) -> None:
        if self.plan_away:
            raise TryLater("the scheduler is away")
        self.planned.append((check, pause))

    def look(self, *answers: Any, look: int = 1, ref: str = REF) -> Look:
        self.broker.answers = list(answers)
        check = FillCheck(user_id="u1", order_id="o1", credentials_ref=ref, look=look)
        return check_fill(check, self.deps())


@pytest.fixture
def desk() -> Iterator[Desk]:
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
    store = Store(client)
    epoch = wanted(store).epoch
    accept(store, "o1")
    store.one(begin_order("u1", "o1", epoch))
    yield Desk(store, Answering())
    client.close()


@pytest.mark.parametrize("status", [status for status in OrderStatus if status.final])
def test_a_final_answer_is_recorded_and_nobody_looks_again(desk: Desk, status: OrderStatus) -> None:
    assert desk.look(told("o1", status.value, "3")) == Look(Checked.FINAL)
    found = record(desk.store, "o1")
    assert (found.status, found.filled_qty, found.verified) == (status.value, "3", "verified")
    assert desk.planned == []
    assert desk.broker.closed == desk.broker.asked == 1


@pytest.mark.parametrize("status", ["accepted", "partial"])
def test_an_open_order_is_recorded_and_looked_at_again(desk: Desk, status: str) -> None:
    assert desk.look(told("o1", status)) == Look(Checked.OPEN)
    assert (record(desk.store, "o1").status, record(desk.store, "o1").verified) == (status, "open")
    ((check, pause),) = desk.planned
    assert (check.look, pause) == (2, timedelta(seconds=60))


def test_the_pauses_double_up_to_an_hour_and_span_a_day(desk: Desk) -> None:
    pauses = []
    for look in range(1, MOST_LOOKS):
        desk.look(told("o1", "accepted"), look=look)
        pauses.append(desk.planned[-1][1])
    assert pauses[:4] == [timedelta(minutes=minutes) for minutes in (1, 2, 4, 8)]
    assert max(pauses) == timedelta(hours=1)
    assert sum(pauses, timedelta()) > timedelta(hours=23)


def test_after_the_last_look_the_order_stays_visibly_unverified(desk: Desk) -> None:
    assert desk.look(told("o1", "accepted"), look=MOST_LOOKS).outcome is Checked.UNVERIFIED
    assert desk.planned == []
    assert record(desk.store, "o1").verified.startswith("unverified: not final after")


def test_an_order_the_broker_does_not_have_is_looked_at_again(desk: Desk) -> None:
    assert desk.look(None) == Look(Checked.UNKNOWN)
    assert record(desk.store, "o1").verified == "unverified: the broker does not have it"
    assert len(desk.planned) == 1


def test_a_refused_order_the_broker_does_not_have_is_verified(desk: Desk) -> None:
    desk.store.one(report_refused("u1", "o1", OrderStatus.REJECTED, "no money"))
    assert desk.look(None) == Look(Checked.FINAL)
    assert (record(desk.store, "o1").status, record(desk.store, "o1").verified) == ("rejected", "verified")
    assert desk.planned == []


def test_one_lost_answer_is_asked_for_again_at_once(desk: Desk) -> None:
    assert desk.look(BrokerAway("lost"), told("o1", "filled", "10")).outcome is Checked.FINAL
    assert desk.broker.closed == 2


def test_while_the_broker_is_away_the_order_says_so(desk: Desk) -> None:
    desk.store.one(report_order("u1", told("o1", "filled", "10")))
    with pytest.raises(TryLater):
        desk.look(BrokerAway("status 503"))
    found = record(desk.store, "o1")
    assert (found.status, found.verified) == ("filled", "unverified: status 503")
    assert desk.planned == []


def test_bad_credentials_park_the_check_and_the_order_says_why(desk: Desk) -> None:
    with pytest.raises(BadCommand, match="stays unverified"):
        desk.look(None, ref="other/ref")
    assert record(desk.store, "o1").verified == "unverified: there is no secret 'other/ref'"


def test_a_plan_that_fails_brings_the_check_back_and_the_repeat_plans_it(desk: Desk) -> None:
    desk.plan_away = True
    with pytest.raises(TryLater):
        desk.look(told("o1", "accepted"))
    assert record(desk.store, "o1").status == "accepted"
    desk.plan_away = False
    desk.look(told("o1", "accepted"))
    assert len(desk.planned) == 1


def test_a_difference_between_worker_and_broker_is_told(desk: Desk) -> None:
    desk.store.one(report_order("u1", told("o1", "filled", "10")))
    assert desk.look(told("o1", "cancelled", "4")) == Look(Checked.FINAL, "filled 10")
    assert desk.look(told("o1", "cancelled", "4")) == Look(Checked.FINAL), "counted once"


def test_the_workers_first_check_is_understood() -> None:
    check = parse_check(check_body("u1", "o1", REF))
    assert (check.user_id, check.order_id, check.credentials_ref, check.look) == ("u1", "o1", REF, 1)


# -- the handler


class ScriptedSqs:
    """Keeps what is parked and which pauses were asked for."""

    def __init__(self) -> None:
        self.parked: list[dict[str, Any]] = []
        self.pauses: list[int] = []

    def send_message(self, **message: Any) -> None:
        self.parked.append(message)

    def change_message_visibility_batch(self, *, Entries: list[dict[str, Any]], **_: Any) -> None:
        self.pauses += [entry["VisibilityTimeout"] for entry in Entries]


def sqs_record(number: int, body: str, group: str = "o1", receives: int = 1) -> dict[str, Any]:
    return {
        "messageId": f"m{number}",
        "receiptHandle": f"r{number}",
        "body": body,
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:000000000000:{ORDER_TASKS.name}",
        "attributes": {
            "MessageGroupId": group,
            "SentTimestamp": "1",
            "ApproximateReceiveCount": str(receives),
        },
    }


@pytest.fixture
def sqs(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> ScriptedSqs:
    scripted = ScriptedSqs()
    settings = Settings(queue_order_tasks="q", queue_order_tasks_dlq="dlq")
    parts = SimpleNamespace(settings=settings, sqs=scripted, orders=desk.deps())
    monkeypatch.setattr(wiring, "_wiring", parts)
    return scripted


def outcomes(out: str) -> dict[str, int]:
    """What the EMF lines say of FillChecks by outcome."""
    found: dict[str, int] = {}
    for line in out.splitlines():
        said = json.loads(line)
        if "_aws" in said and "outcome" in said:
            assert said["_aws"]["CloudWatchMetrics"][0]["Metrics"][0]["Name"] == "FillChecks"
            found[said["outcome"]] = found.get(said["outcome"], 0) + int(said["FillChecks"][0])
    return found


def test_looks_are_counted_by_outcome_and_differences_beside_them(
    desk: Desk, sqs: ScriptedSqs, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.store.one(report_order("u1", told("o1", "filled", "10")))
    desk.broker.answers = [told("o1", "cancelled", "4")]
    answer = handler({"Records": [sqs_record(1, check_body("u1", "o1", REF))]}, None)
    assert answer == {"batchItemFailures": []}
    assert outcomes(capsys.readouterr().out) == {"final": 1, "differs": 1}


def test_a_bad_record_is_parked_and_the_rest_of_the_batch_is_checked(desk: Desk, sqs: ScriptedSqs) -> None:
    desk.broker.answers = [told("o1", "filled", "10")]
    records = [sqs_record(1, "{", "bad"), sqs_record(2, check_body("u1", "o1", REF))]
    assert handler({"Records": records}, None) == {"batchItemFailures": []}
    assert [message["MessageBody"] for message in sqs.parked] == ["{"]
    assert record(desk.store, "o1").verified == "verified"


@pytest.mark.parametrize(("receives", "pause"), [(1, 5), (2, round(AWAY_PAUSE.total_seconds()))])
def test_while_the_broker_is_away_a_check_comes_back_soon_and_then_late(
    desk: Desk, sqs: ScriptedSqs, receives: int, pause: int
) -> None:
    desk.broker.answers = [BrokerAway("down")]
    records = [
        sqs_record(1, check_body("u1", "o1", REF), receives=receives),
        sqs_record(2, check_body("u1", "o1", REF)),
    ]
    failed = handler({"Records": records}, None)["batchItemFailures"]
    assert [item["itemIdentifier"] for item in failed] == ["m1", "m2"], "the group keeps its order"
    assert sqs.pauses == [pause, pause]
    assert (desk.broker.asked, sqs.parked) == (2, [])
    assert record(desk.store, "o1").verified == "unverified: down"
