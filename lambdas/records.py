"""What both queue functions do with the records of a batch: answer SQS, park, and bring back sooner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_lambda_powertools.utilities.batch import SqsFifoPartialProcessor, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from lambdas.wiring import wired
from muster.blueprint import RETRY_VISIBILITY, RETRY_VISIBILITY_LATER
from muster.errors import MusterError, TryLater
from muster.queues import come_back_after, park


def parked(record: dict[str, Any], dlq_url: str, why: MusterError) -> TryLater | None:
    """Park a record that can never work; the error to fail it with, if even that did not work."""
    try:
        park(wired().sqs, dlq_url, record, str(why))
    except TryLater as away:
        return away
    return None


def answer(
    event: dict[str, Any], context: Any, queue_url: str, failures: Mapping[str, MusterError]
) -> dict[str, Any]:
    """The handler's answer to SQS: what is not named as failed is deleted.

    The processor also names the rest of a failed record's group, and only of that group. All of them come
    back soon: a group stays blocked while any of its messages is in flight.
    """

    def record_handler(record: SQSRecord) -> None:
        if (failure := failures.get(record.message_id)) is not None:
            raise failure

    # Every record failing must still be an answer, not an exception: an exception says nothing of groups.
    processor = SqsFifoPartialProcessor(skip_group_on_error=True)
    processor.raise_on_entire_batch_failure = False
    response: dict[str, Any] = dict(
        process_partial_response(
            event=event, record_handler=record_handler, processor=processor, context=context
        )
    )
    failed = {item["itemIdentifier"] for item in response["batchItemFailures"]}
    handles = [record["receiptHandle"] for record in event["Records"] if record["messageId"] in failed]
    if handles:
        pauses = [f.after for f in failures.values() if isinstance(f, TryLater) and f.after]
        first = all(
            record["attributes"].get("ApproximateReceiveCount", "1") == "1" for record in event["Records"]
        )
        pause = RETRY_VISIBILITY if first else RETRY_VISIBILITY_LATER
        come_back_after(wired().sqs, queue_url, handles, max([pause, *pauses]))
    return response
