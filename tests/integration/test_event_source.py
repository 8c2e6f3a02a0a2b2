"""The event source on the real local endpoint: what Lambda promises of SQS, seen from the handler."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from local.endpoint import LocalAws, arn
from local.event_source import LONG_POLL_S, EventSource, redrive
from muster.blueprint import FN_WORKER_CONTROL, WORKER_CONTROL, Function

PATIENCE_S = 30


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    endpoint = LocalAws(tmp_path_factory.mktemp("aws")).start()
    yield endpoint
    endpoint.stop()


@dataclass
class Lane:
    """A FIFO queue of this test's own with its dead-letter queue, and the sources that feed from it."""

    sqs: Any
    url: str
    dlq: str
    name: str
    sources: list[EventSource] = field(default_factory=list)

    def send(self, body: str, group: str = "u1", **more: Any) -> None:
        self.sqs.send_message(
            QueueUrl=self.url,
            MessageBody=body,
            MessageGroupId=group,
            MessageDeduplicationId=str(uuid.uuid4()),
            **more,
        )

    def feed(
        self,
        handler: Callable[[dict[str, Any], Any], Any],
        function: Function = FN_WORKER_CONTROL,
        concurrency: int | None = None,
    ) -> EventSource:
        source = EventSource(self.sqs, self.url, function, handler, concurrency=concurrency).start()
        self.sources.append(source)
        return source

    def counts(self, url: str) -> tuple[int, int]:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = self.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return int(told[names[0]]), int(told[names[1]])

    def empty(self) -> bool:
        return self.counts(self.url) == (0, 0)


@pytest.fixture
def lane(aws: LocalAws) -> Iterator[Lane]:
    sqs, name = aws.client("sqs"), f"lane-{uuid.uuid4().hex[:8]}"
    fifo = {"FifoQueue": "true"}
    dlq = sqs.create_queue(QueueName=f"{name}-dlq.fifo", Attributes=fifo)["QueueUrl"]
    redrive_policy = {"deadLetterTargetArn": arn(f"{name}-dlq.fifo"), "maxReceiveCount": 3}
    attributes = {**fifo, "VisibilityTimeout": "60", "RedrivePolicy": json.dumps(redrive_policy)}
    url = sqs.create_queue(QueueName=f"{name}.fifo", Attributes=attributes)["QueueUrl"]
    made = Lane(sqs, url, dlq, f"{name}.fifo")
    yield made
    stopped = [source.stop(10) for source in made.sources]
    assert all(stopped)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)


def test_the_event_is_what_lambda_would_give(lane: Lane) -> None:
    events: list[tuple[dict[str, Any], Any]] = []
    lane.send(
        '{"a": "ü"}',
        "u7",
        MessageAttributes={
            "reason": {"DataType": "String", "StringValue": "why"},
            "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
    )
    lane.feed(lambda event, context: events.append((event, context)))
    until(lane.empty)
    [(event, context)] = events
    [record] = event["Records"]
    assert json.loads(json.dumps(event)) == event
    assert record["body"] == '{"a": "ü"}'
    assert record["eventSource"] == "aws:sqs"
    assert record["eventSourceARN"] == arn(lane.name)
    assert record["awsRegion"] == "us-east-1"
    assert record["messageAttributes"]["reason"]["stringValue"] == "why"
    assert record["messageAttributes"]["blob"]["binaryValue"] == "AP8="
    assert record["attributes"]["MessageGroupId"] == "u7"
    assert record["attributes"]["ApproximateReceiveCount"] == "1"
    assert {
        "SentTimestamp",
        "SenderId",
        "SequenceNumber",
        "MessageDeduplicationId",
        "ApproximateFirstReceiveTimestamp",
    } <= set(record["attributes"])
    assert {"messageId", "receiptHandle", "md5OfBody"} <= set(record)
    assert context.function_name == "worker_control"


def test_batches_are_at_most_ten(lane: Lane) -> None:
    sizes: list[int] = []
    for n in range(25):
        lane.send(str(n), f"u{n}")
    lane.feed(lambda event, context: sizes.append(len(event["Records"])))
    until(lane.empty)
    assert sorted(sizes) == [5, 10, 10]


def test_each_group_is_in_order_and_never_in_two_hands(lane: Lane) -> None:
    seen: dict[str, list[int]] = {}
    now: list[str] = []
    clashes: list[str] = []
    lock = threading.Lock()

    def handler(event: dict[str, Any], context: Any) -> None:
        groups = {record["attributes"]["MessageGroupId"] for record in event["Records"]}
        with lock:
            clashes.extend(group for group in groups if group in now)
            now.extend(groups)
        for record in event["Records"]:
            seen.setdefault(record["attributes"]["MessageGroupId"], []).append(int(record["body"]))
        with lock:
            for group in groups:
                now.remove(group)

    source = lane.feed(handler, concurrency=8)
    for n in range(30):
        for user in range(5):
            lane.send(str(n), f"u{user}")
        source.wake()
    until(lane.empty)
    assert seen == {f"u{user}": list(range(30)) for user in range(5)}
    assert clashes == []


def test_at_most_so_many_invocations_run_at_once(lane: Lane) -> None:
    running, most, done, lock = 0, 0, 0, threading.Lock()
    three, go = threading.Semaphore(0), threading.Event()

    def handler(event: dict[str, Any], context: Any) -> None:
        nonlocal running, most, done
        with lock:
            running += 1
            most = max(most, running)
        three.release()
        go.wait(PATIENCE_S)
        with lock:
            running -= 1
            done += len(event["Records"])

    for n in range(60):
        lane.send(str(n), f"u{n}")
    source = lane.feed(handler, concurrency=3)
    source.wake()
    for _ in range(3):
        assert three.acquire(timeout=PATIENCE_S)
    assert lane.counts(lane.url) == (30, 30)
    go.set()
    until(lane.empty)
    assert most == 3
    assert done == 60


def test_only_the_named_failures_come_back_and_their_group_waits(lane: Lane) -> None:
    handled: list[str] = []
    failed: list[dict[str, Any]] = []

    def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
        failures: list[dict[str, str]] = []
        for record in event["Records"]:
            if record["body"] == "bad" and not failed:
                failed.append(record)
                failures.append({"itemIdentifier": record["messageId"]})
            else:
                handled.append(record["body"] + record["attributes"]["ApproximateReceiveCount"])
        return {"batchItemFailures": failures}

    lane.send("good", "u1")
    lane.send("bad", "u2")
    source = lane.feed(handler)
    until(lambda: lane.counts(lane.url) == (0, 1))
    lane.send("behind", "u2")
    lane.send("beside", "u3")
    source.wake()
    until(lambda: lane.counts(lane.url) == (1, 1) and len(handled) == 2)
    assert handled == ["good1", "beside1"]
    lane.sqs.change_message_visibility(
        QueueUrl=lane.url, ReceiptHandle=failed[0]["receiptHandle"], VisibilityTimeout=0
    )
    source.wake()
    until(lane.empty)
    assert handled[2:] == ["bad2", "behind1"]


@pytest.mark.parametrize("how", ["raises", "empty id", "no object"])
def test_a_broken_handler_fails_its_whole_batch(lane: Lane, how: str) -> None:
    calls: list[int] = []

    def handler(event: dict[str, Any], context: Any) -> Any:
        calls.append(len(event["Records"]))
        if how == "raises":
            raise RuntimeError("broken")
        return {"batchItemFailures": [{"itemIdentifier": ""}]} if how == "empty id" else "fine"

    lane.send("1", "u1")
    lane.send("2", "u2")
    source = lane.feed(handler)
    until(lambda: bool(calls))
    assert source.stop(10)
    assert lane.counts(lane.url) == (0, 2)
    assert calls == [2]


def test_what_fails_three_times_goes_to_the_dead_letter_queue_and_redrive_brings_it_back(
    lane: Lane,
) -> None:
    counts: list[str] = []
    healed = threading.Event()
    got: list[dict[str, Any]] = []

    def handler(event: dict[str, Any], context: Any) -> None:
        if healed.is_set():
            got.extend(event["Records"])
            return
        counts.extend(record["attributes"]["ApproximateReceiveCount"] for record in event["Records"])
        raise RuntimeError("not yet")

    lane.sqs.set_queue_attributes(QueueUrl=lane.url, Attributes={"VisibilityTimeout": "1"})
    lane.send("poison", "u1", MessageAttributes={"k": {"DataType": "String", "StringValue": "v"}})
    lane.feed(handler)
    until(lambda: lane.counts(lane.dlq) == (1, 0))
    assert counts == ["1", "2", "3"]
    assert lane.empty()

    healed.set()
    assert redrive(lane.sqs, lane.dlq, lane.url) == 1
    until(lambda: bool(got))
    assert got[0]["body"] == "poison"
    assert got[0]["attributes"]["MessageGroupId"] == "u1"
    assert got[0]["messageAttributes"]["k"]["stringValue"] == "v"
    assert lane.counts(lane.dlq) == (0, 0)


def test_a_redrive_keeps_order_and_its_limit(lane: Lane) -> None:
    for n in range(13):
        lane.sqs.send_message(
            QueueUrl=lane.dlq, MessageBody=str(n), MessageGroupId="u1", MessageDeduplicationId=str(n)
        )
    assert redrive(lane.sqs, lane.dlq, lane.url, limit=2) == 2
    assert lane.counts(lane.dlq) == (11, 0)
    assert redrive(lane.sqs, lane.dlq, lane.url) == 11
    assert redrive(lane.sqs, lane.dlq, lane.url) == 0
    bodies: list[str] = []
    lane.feed(lambda event, context: bodies.extend(record["body"] for record in event["Records"]))
    until(lane.empty)
    assert bodies == [str(n) for n in range(13)]


def test_a_message_that_comes_straight_back_is_redriven_once(lane: Lane) -> None:
    class ParkedAtOnce:
        """The queue behind a handler so quick that what is sent is in the dead-letter queue again."""

        def __getattr__(self, name: str) -> Any:
            return getattr(lane.sqs, name)

        def send_message(self, **words: Any) -> Any:
            return lane.sqs.send_message(**{**words, "QueueUrl": lane.dlq})

    for n in range(3):
        lane.sqs.send_message(
            QueueUrl=lane.dlq, MessageBody=str(n), MessageGroupId="u1", MessageDeduplicationId=str(n)
        )
    assert redrive(ParkedAtOnce(), lane.dlq, lane.url) == 3
    assert lane.counts(lane.dlq) == (3, 0)


def test_a_stop_leaves_nothing_half_done(lane: Lane) -> None:
    handled: list[str] = []
    source = lane.feed(lambda event, context: handled.extend(r["body"] for r in event["Records"]))
    for n in range(50):
        lane.send(str(n), f"u{n}")
    assert source.stop(10)
    visible, in_flight = lane.counts(lane.url)
    assert in_flight == 0
    assert visible + len(handled) == 50


def test_an_idle_source_costs_next_to_nothing(lane: Lane) -> None:
    """Few requests and little CPU time of our own; neither grows with the load of the machine."""
    asked = 0
    real = lane.sqs.receive_message

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(lane.sqs, name)

        def receive_message(self, **words: Any) -> Any:
            nonlocal asked
            asked += 1
            return real(**words)

    idle = Function("idle", timedelta(seconds=60), 256, 50, queue=WORKER_CONTROL)
    source = EventSource(Counting(), lane.url, idle, lambda event, context: None).start()
    lane.sources.append(source)
    before, cpu = time.monotonic(), time.process_time()
    until(lambda: asked >= 4)
    took = time.monotonic() - before
    assert took > 2 * LONG_POLL_S
    assert (time.process_time() - cpu) / took < 0.2


def test_it_is_calm_when_nothing_has_come_for_a_while_or_patience_ends(lane: Lane) -> None:
    handled: list[float] = []

    def handler(_event: dict[str, Any], _context: Any) -> None:
        handled.append(time.monotonic())

    source = lane.feed(handler)
    source.calm(3600, 3600)  # nothing has ever come
    lane.send("{}")
    until(lambda: bool(handled))
    source.calm(0.2, 3600)
    assert time.monotonic() - handled[0] >= 0.1
    source.calm(3600, 0.05)
    assert time.monotonic() - handled[0] < 3600
