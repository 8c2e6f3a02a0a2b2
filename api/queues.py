"""The queues as a person sees them, and what can be done with messages that were given up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from api.source import DeadLetter, NotFound, QueueView
from muster import blueprint
from muster.blueprint import SQS_BATCH_MAX, Queue
from muster.commands import from_ms
from muster.errors import Refused, TryLater
from muster.queues import come_back_after
from muster.settings import Settings

#: A look hides messages from others this long at most; they are given back as soon as it is over.
_LOOK_S = 30
_COUNTS = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")


class Queues:
    """The queues of the blueprint at their addresses in `settings`."""

    def __init__(self, sqs: Any, settings: Settings) -> None:
        self._sqs = sqs
        self._urls = {
            blueprint.WORKER_CONTROL.name: settings.queue_worker_control,
            blueprint.WORKER_CONTROL_DLQ.name: settings.queue_worker_control_dlq,
            blueprint.ORDER_TASKS.name: settings.queue_order_tasks,
            blueprint.ORDER_TASKS_DLQ.name: settings.queue_order_tasks_dlq,
            blueprint.POOL_CLAIM.name: settings.queue_pool_claim,
        }

    def check(self) -> None:
        """`TryLater` if the queue of commands does not answer."""
        self._counts(blueprint.WORKER_CONTROL.name)

    def views(self) -> list[QueueView]:
        given_up_to = {queue.dead_letter for queue in blueprint.QUEUES}
        views = []
        for queue in blueprint.QUEUES:
            if queue.name in given_up_to or not self._urls[queue.name]:
                continue
            depth, in_flight = self._counts(queue.name)
            given_up = sum(self._counts(queue.dead_letter)) if queue.dead_letter else None
            views.append(QueueView(queue.name, depth, in_flight, given_up))
        return views

    def dead_letters(self, name: str, limit: int) -> list[DeadLetter]:
        dlq = str(with_dead_letters(name).dead_letter)
        seen: list[dict[str, Any]] = []
        try:
            while len(seen) < limit and (batch := self._receive(dlq, limit - len(seen))):
                seen += batch
        finally:
            self._give_back(dlq, seen)
        return [_dead_letter(message) for message in seen]

    def redrive(self, name: str, message_id: str | None) -> int:
        """By receive, send, delete: the service's own move cannot pick one message, and would give a command
        without a time of its own a new one, with which it could overtake a newer stop."""
        source = with_dead_letters(name)
        dlq = str(source.dead_letter)
        left = sum(self._counts(dlq))  # what fails again meanwhile is not sent round for ever
        moved, passed_over = 0, []
        try:
            while left > 0 and (batch := self._receive(dlq, SQS_BATCH_MAX)):
                left -= len(batch)
                for message in batch:
                    if message_id in (None, message["MessageId"]):
                        self._send_again(source, message)
                        moved += 1
                    else:
                        passed_over.append(message)
                if message_id is not None and moved:
                    break
        finally:
            self._give_back(dlq, passed_over)
        if message_id is not None and not moved:
            raise NotFound(f"{message_id} is not among the given-up messages of {source.name}")
        return moved

    def purge(self, name: str) -> int:
        dlq = str(with_dead_letters(name).dead_letter)
        count = sum(self._counts(dlq))
        with _away(dlq):
            try:
                self._sqs.purge_queue(QueueUrl=self._urls[dlq])
            except self._sqs.exceptions.PurgeQueueInProgress as busy:
                raise Refused(f"{dlq} is being purged already; that works once a minute") from busy
        return count

    def _counts(self, name: str) -> tuple[int, int]:
        with _away(name):
            answer = self._sqs.get_queue_attributes(QueueUrl=self._urls[name], AttributeNames=list(_COUNTS))
        waiting, in_flight = (int(answer["Attributes"][count]) for count in _COUNTS)
        return waiting, in_flight

    def _receive(self, dlq: str, most: int) -> list[dict[str, Any]]:
        with _away(dlq):
            answer = self._sqs.receive_message(
                QueueUrl=self._urls[dlq],
                MaxNumberOfMessages=min(most, SQS_BATCH_MAX),
                VisibilityTimeout=_LOOK_S,
                MessageSystemAttributeNames=["All"],
                MessageAttributeNames=["All"],
            )
        return list(answer.get("Messages", ()))

    def _give_back(self, dlq: str, messages: list[dict[str, Any]]) -> None:
        handles = [message["ReceiptHandle"] for message in messages]
        come_back_after(self._sqs, self._urls[dlq], handles, timedelta(0))

    def _send_again(self, source: Queue, message: dict[str, Any]) -> None:
        """Sent before it is deleted. The deduplication id is of this dead letter: with its first one the
        service would swallow the message within five minutes; and a repeat after a crash is sent once."""
        with _away(source.name):
            self._sqs.send_message(
                QueueUrl=self._urls[source.name],
                MessageBody=_dated(message) if source is blueprint.WORKER_CONTROL else message["Body"],
                MessageGroupId=message["Attributes"]["MessageGroupId"],
                MessageDeduplicationId=f"redrive-{message['MessageId']}",
            )
            self._sqs.delete_message(
                QueueUrl=self._urls[str(source.dead_letter)], ReceiptHandle=message["ReceiptHandle"]
            )


def with_dead_letters(name: str) -> Queue:
    """The queue of this name, or the one whose dead-letter queue has it."""
    for queue in blueprint.QUEUES:
        if queue.dead_letter and name in (queue.name, queue.dead_letter):
            return queue
    names = ", ".join(queue.name for queue in blueprint.QUEUES if queue.dead_letter)
    raise NotFound(f"no queue {name} with given-up messages; there are {names}")


def _attribute(message: dict[str, Any], name: str) -> str | None:
    value = message.get("MessageAttributes", {}).get(name)
    return str(value["StringValue"]) if value else None


def _sent_at_ms(message: dict[str, Any]) -> int:
    """When it was first sent, where it was parked with that; else when it came here, which is later."""
    return int(_attribute(message, "sent_at_ms") or message["Attributes"]["SentTimestamp"])


def _dead_letter(message: dict[str, Any]) -> DeadLetter:
    return DeadLetter(
        message_id=message["MessageId"],
        group=message["Attributes"].get("MessageGroupId"),
        body=message["Body"],
        reason=_attribute(message, "reason"),
        sent_at=from_ms(_sent_at_ms(message)),
    )


def _dated(message: dict[str, Any]) -> str:
    """A command sent by hand takes its moment from the queue; sent again, it must keep the first one."""
    body = str(message["Body"])
    try:
        raw = json.loads(body)
    except ValueError:
        return body  # it is parked again, with its reason
    if not isinstance(raw, dict) or "issued_at" in raw:
        return body
    return json.dumps({**raw, "issued_at": from_ms(_sent_at_ms(message)).isoformat()})


@contextmanager
def _away(name: str) -> Iterator[None]:
    try:
        yield
    except (BotoCoreError, ClientError) as away:
        raise TryLater(f"{name} does not answer ({away}); try again") from away
