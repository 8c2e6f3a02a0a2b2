"""order_tasks: fill checks. Broker away: the record comes back, and after three times it is in the DLQ."""

from __future__ import annotations

from typing import Any

from lambdas.records import answer, parked
from lambdas.telemetry import Metric, logger, metrics
from lambdas.wiring import wired
from muster.blueprint import FN_ORDER_TASKS
from muster.errors import BadCommand, MusterError
from muster.orders import check_fill, parse_check

log = logger(FN_ORDER_TASKS.name)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    wiring = wired()
    failures: dict[str, MusterError] = {}
    failed_groups: set[str] = set()
    with metrics(FN_ORDER_TASKS.name) as emitter:
        for record in event["Records"]:
            group = record["attributes"].get("MessageGroupId", "")
            if group in failed_groups:
                continue  # it comes back with the one before it
            try:
                check = parse_check(record["body"])
                outcome = check_fill(check, wiring.orders)
            except BadCommand as bad:
                log.warning("record parked", message_id=record["messageId"], reason=str(bad))
                if away := parked(record, wiring.settings.queue_order_tasks_dlq, bad):
                    failures[record["messageId"]] = away
                    failed_groups.add(group)
            except MusterError as later:
                log.warning("check comes back", message_id=record["messageId"], reason=str(later))
                failures[record["messageId"]] = later
                failed_groups.add(group)
            else:
                emitter.add(Metric.FILL_CHECKS, 1)
                log.info("fill checked", correlation_id=check.order_id, user_id=check.user_id,
                         look=check.look, outcome=outcome.value)  # fmt: skip
    return answer(event, context, wiring.settings.queue_order_tasks, failures)
