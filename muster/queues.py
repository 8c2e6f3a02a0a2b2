"""Sending to SQS: commands in tens, parked messages with their reason, and records that come back sooner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from muster.blueprint import SQS_BATCH_MAX
from muster.commands import Command
from muster.errors import TryLater


class SqsCommands:
    """`CommandSender` on worker-control.fifo: one group per user keeps each user's order."""

    def __init__(self, sqs: Any, queue_url: str) -> None:
        self._sqs = sqs
        self._url = queue_url

    def send(self, commands: Sequence[Command]) -> None:
        for start in range(0, len(commands), SQS_BATCH_MAX):
            entries = [
                {
                    "Id": str(number),
                    "MessageBody": command.body(),
                    "MessageGroupId": command.user_id,
                    "MessageDeduplicationId": command.dedup_id,
                }
                for number, command in enumerate(commands[start : start + SQS_BATCH_MAX])
            ]
            try:
                answer = self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
            except (BotoCoreError, ClientError) as away:
                raise TryLater(f"worker-control.fifo took no command ({away}); send again") from away
            if failed := answer.get("Failed"):
                raise TryLater(f"worker-control.fifo refused {len(failed)} commands ({failed[0]['Message']})")


def park(sqs: Any, dlq_url: str, record: Mapping[str, Any], reason: str) -> None:
    """Put a record that can never work into the dead-letter queue at once, with its reason.

    Left to its receive count it would block its user's group for 3 x 90 s. The record's own message id is
    the deduplication id, so that a repeat of this step parks it once. SQS refuses control characters in an
    attribute, and a reason may quote the sender's own field names.
    """
    attributes = record["attributes"]
    readable = "".join(character if character.isprintable() else "?" for character in reason)
    try:
        sqs.send_message(
            QueueUrl=dlq_url,
            MessageBody=record["body"],
            MessageGroupId=attributes["MessageGroupId"],
            MessageDeduplicationId=record["messageId"],
            MessageAttributes={
                "reason": {"DataType": "String", "StringValue": readable[:1000]},
                "source": {"DataType": "String", "StringValue": record.get("eventSourceARN", "unknown")},
                "sent_at_ms": {"DataType": "Number", "StringValue": attributes["SentTimestamp"]},
            },
        )
    except (BotoCoreError, ClientError) as away:
        raise TryLater(f"the dead-letter queue took nothing ({away}); the record comes back") from away


def come_back_after(sqs: Any, queue_url: str, handles: Sequence[str], after: timedelta) -> None:
    """Let these received messages be seen again after `after` instead of the whole visibility timeout.

    Best effort: if SQS does not take it they come back with the timeout. All failed records of a group are
    named, because a group stays blocked while any of its messages is in flight.
    """
    for start in range(0, len(handles), SQS_BATCH_MAX):
        entries = [
            {"Id": str(number), "ReceiptHandle": handle, "VisibilityTimeout": round(after.total_seconds())}
            for number, handle in enumerate(handles[start : start + SQS_BATCH_MAX])
        ]
        try:
            sqs.change_message_visibility_batch(QueueUrl=queue_url, Entries=entries)
        except (BotoCoreError, ClientError):
            return
