"""How a handler's answer is read, the shape of a record, and the timing of a source on a scripted queue."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from local import event_source
from local.event_source import EventSource, LambdaContext, failed_records, record, redrive
from muster.blueprint import FN_WORKER_CONTROL
from muster.errors import TryLater

ARN = "arn:aws:sqs:us-east-1:000000000000:worker-control.fifo"


def message(number: int, group: str = "u1") -> dict[str, Any]:
    return {
        "MessageId": f"m{number}",
        "ReceiptHandle": f"r{number}",
        "Body": "{}",
        "MD5OfBody": "md5",
        "Attributes": {"MessageGroupId": group, "ApproximateReceiveCount": "1"},
    }


class ScriptedQueue:
    """An SQS client whose receives give what the test laid out, and block as a long poll does."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.deleted: list[str] = []
        self.receives: list[int] = []
        self.changed = threading.Condition()
        self.polls_over = False

    def lay(self, *batches: Any) -> None:
        with self.changed:
            self.waiting += batches

    def end_long_polls(self) -> None:
        with self.changed:
            self.polls_over = True
            self.changed.notify_all()

    def get_queue_attributes(self, **_: Any) -> dict[str, Any]:
        return {"Attributes": {"QueueArn": ARN}}

    def receive_message(self, *, WaitTimeSeconds: int, **_: Any) -> dict[str, Any]:
        with self.changed:
            self.receives.append(WaitTimeSeconds)
            self.changed.notify_all()
            if WaitTimeSeconds and not self.waiting:
                self.changed.wait_for(lambda: self.polls_over, WaitTimeSeconds)
            batch = self.waiting.pop(0) if self.waiting else []
        if isinstance(batch, Exception):
            raise batch
        return {"Messages": batch} if batch else {}

    def delete_message_batch(self, *, Entries: list[dict[str, str]], **_: Any) -> dict[str, Any]:
        with self.changed:
            self.deleted += [entry["ReceiptHandle"] for entry in Entries]
            self.changed.notify_all()
        return {"Successful": Entries, "Failed": []}

    def until(self, condition: Callable[[], bool]) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, 20)


@pytest.mark.parametrize(
    "answer", [None, {}, {"batchItemFailures": []}, {"batchItemFailures": None}, {"statusCode": 200}]
)
def test_no_failures_named_is_success_of_all(answer: Any) -> None:
    assert failed_records(answer, ["a", "b"]) == set()


def test_named_failures_are_the_failures() -> None:
    answer = {"batchItemFailures": [{"itemIdentifier": "b"}]}
    assert failed_records(answer, ["a", "b"]) == {"b"}


@pytest.mark.parametrize(
    "answer",
    [
        {"batchItemFailures": [{"itemIdentifier": ""}]},
        {"batchItemFailures": [{"itemIdentifier": None}]},
        {"batchItemFailures": [{"messageId": "a"}]},
        {"batchItemFailures": [{"itemIdentifier": "never sent"}]},
        {"batchItemFailures": [{"itemIdentifier": ["a"]}]},
        {"batchItemFailures": ["a"]},
        {"batchItemFailures": "a"},
        "ok",
        ["a"],
        {"when": object()},
    ],
)
def test_an_answer_that_cannot_be_understood_fails_the_batch(answer: Any) -> None:
    with pytest.raises(ValueError):
        failed_records(answer, ["a", "b"])


def test_a_record_has_the_shape_lambda_gives_it() -> None:
    received = {
        **message(1),
        "MD5OfMessageAttributes": "md5a",
        "MessageAttributes": {
            "reason": {"DataType": "String", "StringValue": "why"},
            "blob": {"DataType": "Binary", "BinaryValue": b"\x00\xff"},
        },
    }
    assert record(received, ARN, "us-east-1") == {
        "messageId": "m1",
        "receiptHandle": "r1",
        "body": "{}",
        "attributes": {"MessageGroupId": "u1", "ApproximateReceiveCount": "1"},
        "messageAttributes": {
            "reason": {
                "stringValue": "why",
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": "String",
            },
            "blob": {
                "binaryValue": "AP8=",
                "stringListValues": [],
                "binaryListValues": [],
                "dataType": "Binary",
            },
        },
        "md5OfBody": "md5",
        "md5OfMessageAttributes": "md5a",
        "eventSource": "aws:sqs",
        "eventSourceARN": ARN,
        "awsRegion": "us-east-1",
    }


def test_the_context_tells_who_runs_and_how_long_it_may() -> None:
    context = LambdaContext(FN_WORKER_CONTROL, "us-east-1", "000000000000")
    assert context.function_name == "worker_control"
    assert context.memory_limit_in_mb == "256"
    assert context.invoked_function_arn == "arn:aws:lambda:us-east-1:000000000000:function:worker_control"
    assert 50_000 < context.get_remaining_time_in_millis() <= 60_000
    assert context.aws_request_id != LambdaContext(FN_WORKER_CONTROL, "r", "a").aws_request_id


def test_nothing_is_received_while_every_place_is_taken() -> None:
    sqs, running, most = ScriptedQueue(), [], []
    both, end = threading.Barrier(3), threading.Event()

    def handler(event: dict[str, Any], context: Any) -> None:
        running.append(event)
        most.append(len(running))
        if len(most) <= 2:
            both.wait(20)
        end.wait(20)
        running.remove(event)

    sqs.lay(*[[message(n, f"u{n}")] for n in range(4)])
    source = EventSource(sqs, "url", FN_WORKER_CONTROL, handler, concurrency=2).start()
    both.wait(20)
    asked = len(sqs.receives)
    source.wake()
    assert len(sqs.waiting) == 2
    end.set()
    assert sqs.until(lambda: len(sqs.deleted) == 4)
    assert asked == 2
    assert max(most) == 2
    assert source.stop()


def test_a_wake_looks_at_once_beside_a_long_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_source, "LONG_POLL_S", 600)
    sqs, handled = ScriptedQueue(), threading.Event()
    source = EventSource(sqs, "url", FN_WORKER_CONTROL, lambda e, c: handled.set()).start()
    assert sqs.until(lambda: 600 in sqs.receives)
    sqs.lay([message(1)])
    source.wake()
    assert handled.wait(20)
    assert sqs.until(lambda: sqs.deleted == ["r1"])
    sqs.end_long_polls()
    assert source.stop()


def test_an_endpoint_that_is_away_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_source, "RETRY_S", 0.01)
    sqs = ScriptedQueue()
    sqs.lay(EndpointConnectionError(endpoint_url="http://127.0.0.1:1"), [message(1)])
    source = EventSource(sqs, "url", FN_WORKER_CONTROL, lambda e, c: None).start()
    assert sqs.until(lambda: sqs.deleted == ["r1"])
    assert source.stop()


def test_a_stop_finishes_what_is_in_hand() -> None:
    sqs, began, end = ScriptedQueue(), threading.Event(), threading.Event()

    def handler(event: dict[str, Any], context: Any) -> None:
        began.set()
        end.wait(20)

    sqs.lay([message(1)])
    source = EventSource(sqs, "url", FN_WORKER_CONTROL, handler).start()
    assert began.wait(20)
    stopped: list[bool] = []
    stopping = threading.Thread(target=lambda: stopped.append(source.stop(20)))
    stopping.start()
    end.set()
    stopping.join(20)
    assert stopped == [True]
    assert sqs.deleted == ["r1"]
    asked = len(sqs.receives)
    source.wake()
    assert len(sqs.receives) == asked


def test_a_stop_gives_up_on_a_handler_at_its_deadline() -> None:
    sqs, began, end = ScriptedQueue(), threading.Event(), threading.Event()

    def handler(event: dict[str, Any], context: Any) -> None:
        began.set()
        end.wait(20)

    sqs.lay([message(1)])
    source = EventSource(sqs, "url", FN_WORKER_CONTROL, handler).start()
    assert began.wait(20)
    before = time.monotonic()
    assert not source.stop(0.05)
    assert time.monotonic() - before < 10
    end.set()
    assert source.stop(20)


class MovingQueue(ScriptedQueue):
    """SQS with move tasks, which real SQS has and the local endpoint has not."""

    def __init__(self, *statuses: str) -> None:
        super().__init__()
        self.statuses = list(statuses)
        self.started: dict[str, str] = {}

    def start_message_move_task(self, **asked: str) -> dict[str, str]:
        self.started = asked
        return {"TaskHandle": "t"}

    def list_message_move_tasks(self, **_: Any) -> dict[str, Any]:
        return {"Results": [{"Status": self.statuses.pop(0), "ApproximateNumberOfMessagesMoved": 7}]}


def test_a_redrive_of_all_is_left_to_sqs_where_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_source, "MOVE_POLL_S", 0)
    sqs = MovingQueue("RUNNING", "COMPLETED")
    assert redrive(sqs, "dlq", "queue") == 7
    assert sqs.started == {"SourceArn": ARN, "DestinationArn": ARN}


def test_a_move_that_sqs_gave_up_is_not_reported_as_done() -> None:
    with pytest.raises(TryLater, match="FAILED"):
        redrive(MovingQueue("FAILED"), "dlq", "queue")


def test_a_refused_move_is_not_hidden_by_the_slow_way() -> None:
    class Denied(ScriptedQueue):
        def start_message_move_task(self, **_: Any) -> None:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "StartMessageMoveTask")

    with pytest.raises(ClientError, match="AccessDenied"):
        redrive(Denied(), "dlq", "queue")
