"""worker_control: a batch of command messages, each of which ends done, parked, or coming back by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from aws_lambda_powertools.utilities.batch import SqsFifoPartialProcessor, process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from lambdas.telemetry import Metric, logger, metrics
from lambdas.wiring import wired
from muster.blueprint import FN_WORKER_CONTROL, RETRY_VISIBILITY
from muster.budget import Priority
from muster.commands import Command, from_ms, parse_command
from muster.errors import BadCommand, MusterError, Refused, TryLater
from muster.lifecycle import Outcome, Result, apply
from muster.queues import come_back_after, park

log = logger(FN_WORKER_CONTROL.name)


def handler(event: dict[str, Any], context: Any) -> Any:
    wiring = wired()
    records = event["Records"]
    results = _results(records)
    processor = SqsFifoPartialProcessor(skip_group_on_error=True)

    def record_handler(record: SQSRecord) -> Outcome:
        result = results[record.message_id]
        if isinstance(result, MusterError):
            raise result
        return result

    # SQS deletes what is not named as failed; the processor also names the rest of a failed record's group.
    answer = process_partial_response(
        event=event, record_handler=record_handler, processor=processor, context=context
    )
    failed = {item["itemIdentifier"] for item in answer["batchItemFailures"]}
    handles = [record["receiptHandle"] for record in records if record["messageId"] in failed]
    if handles:
        after = max(
            (r.after or timedelta(0) for r in results.values() if isinstance(r, TryLater)), default=None
        )
        come_back_after(wiring.sqs, wiring.settings.queue_worker_control, handles, after or RETRY_VISIBILITY)
    return answer


def _results(records: list[dict[str, Any]]) -> dict[str, Result]:
    """Message id -> what became of it. Parsed first, so that a bad record never meets its neighbours."""
    results: dict[str, Result] = {}
    commands: dict[str, Command] = {}
    for record in records:
        sent_at = from_ms(int(record["attributes"]["SentTimestamp"]))
        try:
            commands[record["messageId"]] = parse_command(
                record["body"], message_id=record["messageId"], sent_at=sent_at
            )
        except BadCommand as bad:
            results[record["messageId"]] = _parked(record, bad)
    results |= dict(zip(commands, apply(list(commands.values()), wired().deps(Priority.START)), strict=True))
    by_id = {record["messageId"]: record for record in records}
    with metrics(FN_WORKER_CONTROL.name) as emitter:
        for message_id, command in commands.items():
            result = results[message_id]
            if isinstance(result, Refused):
                results[message_id] = _parked(by_id[message_id], result)
            if result is Outcome.CLAIMED:
                emitter.add(Metric.POOL_HIT, 1)
            elif result is Outcome.LAUNCHED:
                emitter.add(Metric.POOL_MISS, 1)
            elif result is Outcome.FAILED:
                emitter.add(Metric.GIVEN_UP, 1)
            log.info(
                "command handled" if isinstance(result, Outcome) else "command comes back",
                correlation_id=command.command_id,
                user_id=command.user_id,
                action=command.action.value,
                cause=command.start_cause.value,
                result=str(result),
            )
    return results


def _parked(record: dict[str, Any], why: MusterError) -> Result:
    wiring = wired()
    try:
        park(wiring.sqs, wiring.settings.queue_worker_control_dlq, record, str(why))
    except TryLater as away:
        return away
    log.warning("record parked", message_id=record["messageId"], reason=str(why))
    return Outcome.FAILED
