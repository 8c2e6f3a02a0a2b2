"""What Lambda's SQS event source does, on one machine: receive, invoke, delete what succeeded.

Order within a group, receive counts, visibility and the move to the dead-letter queue are the queue's own
work. Here a batch becomes an event, and the handler's answer becomes deletes.
"""

from __future__ import annotations

import base64
import json
import logging
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from muster.blueprint import BATCH_RECORDS, Function
from muster.errors import TryLater

log = logging.getLogger(__name__)

#: One long poll: few requests while idle, and yet it is how long `stop` waits on an idle queue. A poll
#: cannot be called back, and what it brings must not stay hidden until its visibility ends.
LONG_POLL_S = 1
#: After a receive that failed (the endpoint is away).
RETRY_S = 1.0
#: How often SQS is asked whether a move task is done.
MOVE_POLL_S = 0.5
#: How an endpoint without move tasks says so.
_NO_MOVE_TASK = frozenset(
    {"InvalidAction", "UnsupportedOperation", "AWS.SimpleQueueService.UnsupportedOperation"}
)

Handler = Callable[[dict[str, Any], Any], Any]


class LambdaContext:
    """The context Lambda gives a handler: who it is, and how much of its time is left."""

    function_version = "$LATEST"

    def __init__(self, function: Function, region: str, account: str) -> None:
        self.function_name = function.name
        self.memory_limit_in_mb = str(function.memory_mb)
        self.invoked_function_arn = f"arn:aws:lambda:{region}:{account}:function:{function.name}"
        self.aws_request_id = str(uuid.uuid4())
        self.log_group_name = f"/aws/lambda/{function.name}"
        self.log_stream_name = "local"
        self._deadline = time.monotonic() + function.timeout.total_seconds()

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._deadline - time.monotonic()) * 1000))


class EventSource:
    """Feeds one function from its queue: batches of up to 10, at most `concurrency` invocations at once.

    A place for the invocation is taken before the receive, so nothing received waits for a place while its
    visibility runs out. One thread long polls; `wake` makes another look at once, because the endpoint
    itself looks only every 100 ms during a long poll. (With a concurrency of 1 the long poll holds the
    only place, and `wake` has nothing to give.)

    Lambda ends a function at its timeout. A thread cannot be ended: a handler must mind the time its
    context tells, else SQS shows its records again while it still works on them.
    """

    def __init__(
        self,
        sqs: Any,
        queue_url: str,
        function: Function,
        handler: Handler,
        *,
        concurrency: int | None = None,
        arn: str = "",
    ) -> None:
        places = concurrency or function.concurrency
        if not places:
            raise ValueError(f"{function.name} needs a concurrency to be fed from a queue")
        self._sqs = sqs
        self._url = queue_url
        self._function = function
        self._handler = handler
        self._arn = arn
        self._places = places
        self._free = places
        self._changed = threading.Condition()
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._invoked_at = float("-inf")
        self._threads: list[threading.Thread] = []

    def start(self) -> EventSource:
        """Begin to poll."""
        self._arn = self._arn or _arn(self._sqs, self._url)
        for look in (self._long_poll, self._look_when_woken):
            thread = threading.Thread(target=look, name=f"{self._function.name}-poller", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def wake(self) -> None:
        """Look at the queue now: somebody has just sent to it. Cheap, from any thread, never blocks."""
        self._woken.set()

    def calm(self, pause_s: float, patience_s: float) -> None:
        """Return once nothing has come out of the queue for `pause_s`; after `patience_s` in any case."""
        give_up_at = time.monotonic() + patience_s
        while (left := min(self._invoked_at + pause_s, give_up_at) - time.monotonic()) > 0:
            if self._stopping.wait(left):
                return

    def stop(self, timeout: float = 30.0) -> bool:
        """Receive no more and finish what is in hand; False if a handler still ran at the deadline.
        Its records come back by themselves when their visibility ends."""
        deadline = time.monotonic() + timeout
        self._stopping.set()
        self._woken.set()
        with self._changed:
            self._changed.notify_all()
            # Every place free means that no receive and no invocation is left.
            finished = self._changed.wait_for(lambda: self._free == self._places, timeout)
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return finished

    def _long_poll(self) -> None:
        while self._take(wait=True):
            self._receive(LONG_POLL_S)

    def _look_when_woken(self) -> None:
        while not self._stopping.is_set():
            self._woken.wait()
            self._woken.clear()
            # No place free: the long poll looks as soon as there is one.
            while self._take(wait=False):
                if not self._receive(0):
                    break

    def _take(self, *, wait: bool) -> bool:
        """Take a place; False when there is none, or never again because of a stop."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._free > 0 or self._stopping.is_set())
            if self._free == 0 or self._stopping.is_set():
                return False
            self._free -= 1
            return True

    def _give_back(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify_all()

    def _receive(self, wait_s: int) -> bool:
        """Use the place the caller took for one receive and its invocation; False if there was nothing."""
        try:
            batch = receive(self._sqs, self._url, BATCH_RECORDS, wait_s)
        except (BotoCoreError, ClientError, TryLater) as error:
            log.warning("receiving for %s failed (%s); again in %g s", self._function.name, error, RETRY_S)
            self._stopping.wait(RETRY_S)
            batch = []
        if not batch:
            self._give_back()
            return False
        self._invoked_at = time.monotonic()
        name = f"{self._function.name}-invocation"
        threading.Thread(target=self._invoke, args=(batch,), name=name, daemon=True).start()
        return True

    def _invoke(self, batch: list[dict[str, Any]]) -> None:
        try:
            failed = self._failed_of(batch)
            self._delete([m for m in batch if m["MessageId"] not in failed])
        finally:
            self._give_back()
            # What waited behind these records in their groups can be received now.
            self.wake()

    def _failed_of(self, batch: list[dict[str, Any]]) -> set[str]:
        region, account = self._arn.split(":")[3:5]
        event = {"Records": [record(message, self._arn, region) for message in batch]}
        context = LambdaContext(self._function, region, account)
        sent = [message["MessageId"] for message in batch]
        try:
            return failed_records(self._handler(event, context), sent)
        except Exception:
            log.exception("%s failed: its %d records come back", self._function.name, len(batch))
            return set(sent)

    def _delete(self, messages: list[dict[str, Any]]) -> None:
        if not messages:
            return
        entries = [{"Id": str(i), "ReceiptHandle": m["ReceiptHandle"]} for i, m in enumerate(messages)]
        try:
            refused = self._sqs.delete_message_batch(QueueUrl=self._url, Entries=entries).get("Failed", [])
        except (BotoCoreError, ClientError, TryLater) as error:
            refused = [{"Message": str(error)}] * len(entries)
        if refused:
            log.warning(
                "%s: %d handled records were not deleted and come again: %s",
                self._function.name,
                len(refused),
                refused[0].get("Message"),
            )


def receive(sqs: Any, queue_url: str, most: int, wait_s: int = 0) -> list[dict[str, Any]]:
    """Up to `most` messages with everything SQS knows of them."""
    answer = sqs.receive_message(
        QueueUrl=queue_url,
        MaxNumberOfMessages=most,
        WaitTimeSeconds=wait_s,
        MessageSystemAttributeNames=["All"],
        MessageAttributeNames=["All"],
    )
    return list(answer.get("Messages", []))


def record(message: dict[str, Any], arn: str, region: str) -> dict[str, Any]:
    """A received message in the shape Lambda gives it."""
    shaped = {
        "messageId": message["MessageId"],
        "receiptHandle": message["ReceiptHandle"],
        "body": message["Body"],
        "attributes": dict(message.get("Attributes", {})),
        "messageAttributes": {
            name: _attribute(value) for name, value in message.get("MessageAttributes", {}).items()
        },
        "md5OfBody": message["MD5OfBody"],
        "eventSource": "aws:sqs",
        "eventSourceARN": arn,
        "awsRegion": region,
    }
    if "MD5OfMessageAttributes" in message:
        shaped["md5OfMessageAttributes"] = message["MD5OfMessageAttributes"]
    return shaped


def _attribute(value: dict[str, Any]) -> dict[str, Any]:
    shaped: dict[str, Any] = {"stringListValues": [], "binaryListValues": [], "dataType": value["DataType"]}
    if "StringValue" in value:
        shaped["stringValue"] = value["StringValue"]
    if "BinaryValue" in value:
        shaped["binaryValue"] = base64.b64encode(value["BinaryValue"]).decode()
    return shaped


def failed_records(answer: Any, sent: Sequence[str]) -> set[str]:
    """The ids of `sent` that the handler's answer gives back, read as Lambda reads it.

    Nothing, or no `batchItemFailures`, is success of all. An answer that cannot be understood (not JSON,
    not an object, an entry without an id, an id that was not sent) raises `ValueError`: the whole batch
    failed, because deleting on a misunderstanding would lose commands.
    """
    try:
        answer = json.loads(json.dumps(answer))
    except (TypeError, ValueError) as error:
        raise ValueError(f"the answer is not JSON: {error}") from error
    if answer is None:
        return set()
    if not isinstance(answer, dict):
        raise ValueError(f"the answer is not an object: {answer!r}")
    failures = answer.get("batchItemFailures")
    if failures is None:
        return set()
    if not isinstance(failures, list):
        raise ValueError(f"batchItemFailures is not a list: {failures!r}")
    failed: set[str] = set()
    for entry in failures:
        identifier = entry.get("itemIdentifier") if isinstance(entry, dict) else None
        if not isinstance(identifier, str) or identifier not in sent:
            raise ValueError(f"batchItemFailures names no record of this batch: {entry!r}")
        failed.add(identifier)
    return failed


def redrive(sqs: Any, dlq_url: str, queue_url: str, limit: int | None = None) -> int:
    """Move messages from a dead-letter queue back to `queue_url`; how many were moved.

    SQS's own move task does it where there is one and all are wanted. Otherwise receive, send, delete:
    body, group and attributes stay, the deduplication id is new because the old one may still be
    remembered. A crash in between leaves a message in both queues; handlers take repeats. Only as many as
    there were at the start: one that fails at once comes back here, and must not be moved for ever.
    """
    if limit is None:
        try:
            return _move_all(sqs, dlq_url, queue_url)
        except ClientError as error:
            if error.response["Error"]["Code"] not in _NO_MOVE_TASK:
                raise
    depth = sqs.get_queue_attributes(QueueUrl=dlq_url, AttributeNames=["ApproximateNumberOfMessages"])
    left = int(depth["Attributes"]["ApproximateNumberOfMessages"])
    left = left if limit is None else min(left, limit)
    moved = 0
    while moved < left and (batch := receive(sqs, dlq_url, min(BATCH_RECORDS, left - moved))):
        for message in batch:
            order = {}
            if group := message.get("Attributes", {}).get("MessageGroupId"):
                order = {"MessageGroupId": group, "MessageDeduplicationId": str(uuid.uuid4())}
            sqs.send_message(
                QueueUrl=queue_url,
                MessageBody=message["Body"],
                MessageAttributes=message.get("MessageAttributes", {}),
                **order,
            )
            sqs.delete_message(QueueUrl=dlq_url, ReceiptHandle=message["ReceiptHandle"])
            moved += 1
    return moved


def _move_all(sqs: Any, dlq_url: str, queue_url: str) -> int:
    source = _arn(sqs, dlq_url)
    sqs.start_message_move_task(SourceArn=source, DestinationArn=_arn(sqs, queue_url))
    while True:
        task = sqs.list_message_move_tasks(SourceArn=source, MaxResults=1)["Results"][0]
        if task["Status"] == "COMPLETED":
            return int(task["ApproximateNumberOfMessagesMoved"])
        if task["Status"] != "RUNNING":
            raise TryLater(
                f"SQS ended the move as {task['Status']}: {task.get('FailureReason', 'no reason')}"
            )
        time.sleep(MOVE_POLL_S)


def _arn(sqs: Any, queue_url: str) -> str:
    told = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["QueueArn"])
    return str(told["Attributes"]["QueueArn"])
