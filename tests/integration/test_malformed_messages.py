"""Ten thousand malformed messages: none crashes a batch, none is lost unseen, none harms its neighbours.

The handlers are given what Lambda would give them. A record is accounted for when it was handled, when it is
in the dead-letter queue with its reason, or when the answer names it so that it comes back.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from botocore.exceptions import ClientError
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from lambdas import wiring
from lambdas.order_tasks.handler import handler as order_tasks
from lambdas.worker_control.handler import handler as worker_control
from muster import steps
from muster.brokers.port import Credentials, Order
from muster.commands import parse_command
from muster.errors import BadCommand
from muster.messages import MAX_BODY_CHARS
from muster.model import Want
from muster.order_steps import begin_order, check_body
from muster.orders import OrderDeps, parse_check
from muster.settings import Settings
from muster.store import Store
from tests.order_stand import REF, accept, record, told, wanted
from tests.worlds import command, world

CONTEXT = SimpleNamespace(aws_request_id="run-1")
#: For each handler: of nine bodies in a batch (beside a good message) nearly all are malformed.
BATCHES, BODIES, MALFORMED = 620, 9, 5_000
#: SQS itself takes no control characters, so handlers never see them; they must bear them all the same.
WRITTEN = st.text(st.characters(), max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**300, 10**301) | st.floats() | WRITTEN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WRITTEN, inner, max_size=3),
    max_leaves=6,
)
DEEP = st.builds(
    lambda opening, depth, closed: opening * depth + ("]" * depth if closed else ""),
    st.sampled_from(["[", '{"a":', '{"action":"start","user_id":[']),
    st.integers(1, 3_000),
    st.booleans(),
)


def bodies(good: dict[str, Any]) -> st.SearchStrategy[str]:
    """Everything from noise to a good message with one thing wrong."""
    names = st.sampled_from([*good, "version", "look", "seen_epoch", "issued_at", "cause", "credentials_ref"])
    wrong = st.builds(
        lambda name, value: json.dumps(good | {name: value}), names | WRITTEN, VALUES
    ) | st.builds(
        lambda name: json.dumps({n: v for n, v in good.items() if n != name}), st.sampled_from([*good])
    )
    ids = st.sampled_from(["", ".", "..", "u" * 129, "../etc/passwd", "ü", "a b", "\ud800", "u\u0000", "{u}"])
    return st.one_of(
        WRITTEN,
        st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")),
        VALUES.map(json.dumps),
        DEEP,
        wrong,
        st.builds(
            lambda name, bad: json.dumps(good | {name: bad}), st.sampled_from(["user_id", "order_id"]), ids
        ),
        st.builds(lambda at: json.dumps(good)[:at], st.integers(0, len(json.dumps(good)) - 1)),
        st.builds(lambda end: json.dumps(good) + end, st.sampled_from(["}", "\x00", "{}", " x", "\ufeff"])),
        st.integers(4_000, 6_000).map(lambda digits: f'{{"look": {"9" * digits}}}'),
        st.just(json.dumps(good | {"reason": "x" * MAX_BODY_CHARS})),
        st.sampled_from(["", " ", "NaN", "-Infinity", '{"a":1,"a":2}', "\ufeff{}", "\ud800"]),
    )


@dataclass
class Queue:
    """SQS as a handler needs it. While `away`, the dead-letter queue takes nothing."""

    parked: list[dict[str, Any]] = field(default_factory=list)
    away: bool = False

    def send_message(self, **message: Any) -> None:
        if self.away:
            raise ClientError({"Error": {"Code": "ServiceUnavailable", "Message": "away"}}, "SendMessage")
        self.parked.append(message)

    def change_message_visibility_batch(self, **_: Any) -> None:
        return


@dataclass
class Batches:
    """Batches for one handler, with a good message somewhere in each, and the account of every record."""

    handler: Callable[[dict[str, Any], Any], dict[str, Any]]
    parse: Callable[[str], object]
    good: Callable[[int], tuple[str, Callable[[], bool]]]
    queue: Queue
    numbers: Iterator[int] = field(default_factory=itertools.count)
    seen: Counter[str] = field(default_factory=Counter)

    def run(self, written: list[str], place: int, group: str, away: bool) -> None:
        number = next(self.numbers)
        good_body, arrived = self.good(number)
        records = [self._record(f"{number}-{at}", body, group) for at, body in enumerate(written)]
        # In a group of its own: a neighbour that comes back takes the rest of its own group with it.
        good = self._record(f"{number}-good", good_body, f"good-{number}")
        records.insert(place, good)
        self.queue.parked, self.queue.away = [], away
        answer = self.handler({"Records": records}, CONTEXT)
        back = {item["itemIdentifier"] for item in answer["batchItemFailures"]}
        assert good["messageId"] not in back
        assert arrived(), "the good message of the batch was not handled"
        parked = {message["MessageDeduplicationId"]: message for message in self.queue.parked}
        assert len(parked) == len(self.queue.parked), "nothing is parked twice"
        for one in records:
            if one is not good:
                self._account(one, parked.get(one["messageId"]), one["messageId"] in back)

    def _account(self, one: dict[str, Any], parked: dict[str, Any] | None, comes_back: bool) -> None:
        try:
            self.parse(one["body"])
        except BadCommand:
            self.seen["malformed"] += 1
            assert comes_back == (parked is None), "parked or coming back, and not both"
        else:
            self.seen["accepted"] += 1
        if parked is not None:
            self.seen["parked"] += 1
            assert parked["MessageBody"] == one["body"], "nothing of it is lost"
            assert parked["MessageGroupId"] == one["attributes"]["MessageGroupId"]
            reason = parked["MessageAttributes"]["reason"]["StringValue"]
            assert reason.isprintable()
            assert 0 < len(reason) <= 1000
        self.seen["back"] += comes_back

    def _record(self, name: str, body: str, group: str) -> dict[str, Any]:
        return {
            "messageId": name,
            "receiptHandle": f"handle-{name}",
            "body": body,
            "eventSource": "aws:sqs",
            "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:queue.fifo",
            "attributes": {
                "MessageGroupId": group,
                "SentTimestamp": "1800000000000",
                "ApproximateReceiveCount": "1",
            },
        }


@pytest.fixture
def store() -> Iterator[Store]:
    client = fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
    yield Store(client)
    client.close()


def feed(batches: Batches, good: dict[str, Any]) -> None:
    """Every batch there is to be; then the account."""

    @settings(
        max_examples=BATCHES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(
        st.lists(bodies(good), min_size=BODIES, max_size=BODIES),
        st.integers(0, BODIES),
        st.sampled_from(["u1", "somebody-elses-group", "!"]),
        st.integers(0, 9).map(lambda luck: luck == 0),
    )
    def one(written: list[str], place: int, group: str, away: bool) -> None:
        batches.run(written, place, group, away)

    one()
    assert batches.seen["malformed"] >= MALFORMED
    assert batches.seen["parked"] > MALFORMED / 2
    assert batches.seen["back"] > 0, "the dead-letter queue was away now and then"


@pytest.mark.timeout(300)
def test_malformed_commands_are_parked_and_the_good_ones_beside_them_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, w = Queue(), world(store)
    names = Settings(queue_worker_control="q", queue_worker_control_dlq="dlq", version="v1")
    wired = wiring.Wiring(names, queue, lambda _: w.deps, lambda _: None, lambda _: [], None)  # type: ignore[arg-type]
    monkeypatch.setattr(wiring, "_wiring", wired)

    def good(number: int) -> tuple[str, Callable[[], bool]]:
        user = f"good-{number}"
        return command("start", user).body(), lambda: store.one(steps.read_user(user)).want is Want.RUNNING

    def parse(body: str) -> object:
        return parse_command(body, message_id="m", sent_at=datetime.fromtimestamp(1_800_000_000, UTC))

    feed(Batches(worker_control, parse, good, queue), {"action": "start", "user_id": "u1"})


@pytest.mark.timeout(300)
def test_malformed_checks_are_parked_and_the_good_ones_beside_them_are_made(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Filled:
        def get(self, order_id: str) -> Order:
            return told(order_id, "filled", "10")

        def close(self) -> None:
            return

    def credentials(_: str) -> Credentials:
        return Credentials("paper", "key", "secret", "http://x")

    queue = Queue()
    orders = OrderDeps(store, credentials, lambda _: Filled(), lambda _check, _pause: None)  # type: ignore[arg-type,return-value]
    names = Settings(queue_order_tasks="q", queue_order_tasks_dlq="dlq")
    monkeypatch.setattr(wiring, "_wiring", SimpleNamespace(settings=names, sqs=queue, orders=orders))
    epoch = wanted(store).epoch

    def good(number: int) -> tuple[str, Callable[[], bool]]:
        order_id = f"o-{number}"
        accept(store, order_id)
        store.one(begin_order("u1", order_id, epoch))
        return check_body("u1", order_id, REF), lambda: record(store, order_id).verified == "verified"

    feed(
        Batches(order_tasks, parse_check, good, queue),
        {"version": 1, "user_id": "u1", "order_id": "o1", "credentials_ref": REF},
    )
