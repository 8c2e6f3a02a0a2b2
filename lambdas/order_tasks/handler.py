"""order_tasks: fill checks. Broker away: the record comes back, and after three times it is in the DLQ.

The groups of a batch are different orders at different brokers, so they are asked at the same time: one after
the other, ten brokers that hang would outlast the function and the visibility of the last record.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aws_lambda_powertools.metrics import MetricUnit, single_metric

from lambdas.records import answer, parked
from lambdas.telemetry import NAMESPACE, Metric, logger, metrics, scrubbed_errors
from lambdas.wiring import Wiring, wired
from muster.blueprint import BATCH_RECORDS, FN_ORDER_TASKS
from muster.errors import BadCommand, MusterError, TryLater
from muster.orders import AWAY_PAUSE, Look, check_fill, parse_check

log = logger(FN_ORDER_TASKS.name)


@scrubbed_errors
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    wiring = wired()
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in event["Records"]:
        groups[record["attributes"].get("MessageGroupId", "")].append(record)
    with ThreadPoolExecutor(BATCH_RECORDS) as together:
        results = list(together.map(lambda records: _check_group(records, wiring), groups.values()))
    failures: dict[str, MusterError] = {}
    seen: Counter[str] = Counter()
    for looks, failed in results:
        failures |= failed
        seen.update(look.outcome.value for look in looks)
        seen.update("differs" for look in looks if look.differs)
    _count(seen, sum(len(looks) for looks, _ in results))
    return answer(event, context, wiring.settings.queue_order_tasks, failures)


def _check_group(records: list[dict[str, Any]], wiring: Wiring) -> tuple[list[Look], dict[str, MusterError]]:
    """The checks of one order, in their order; after a failure the rest comes back with it."""
    looks: list[Look] = []
    for record in records:
        try:
            check = parse_check(record["body"])
            look = check_fill(check, wiring.orders)
        except BadCommand as bad:
            log.warning("record parked", message_id=record["messageId"], reason=str(bad))
            if away := parked(record, wiring.settings.queue_order_tasks_dlq, bad):
                return looks, {record["messageId"]: away}
        except MusterError as later:
            log.warning("check comes back", message_id=record["messageId"], reason=str(later))
            return looks, {record["messageId"]: _patient(later, record)}
        else:
            looks.append(look)
            log.info(
                "fill checked",
                correlation_id=check.order_id,
                user_id=check.user_id,
                look=check.look,
                outcome=look.outcome.value,
                differs=look.differs,
            )
    return looks, {}


def _patient(later: MusterError, record: dict[str, Any]) -> MusterError:
    """Soon the first time, late the second: the third receive is the last."""
    again = int(record["attributes"].get("ApproximateReceiveCount", "1")) > 1
    return TryLater(str(later), AWAY_PAUSE) if again else later


def _count(seen: Counter[str], looks: int) -> None:
    """All looks for the alarms, and each outcome apart for whoever asks what they found."""
    with metrics(FN_ORDER_TASKS.name) as emitter:
        if looks:
            emitter.add(Metric.FILL_CHECKS, looks)
    for outcome, count in seen.items():
        with single_metric(
            name=Metric.FILL_CHECKS.value,
            unit=MetricUnit.Count,
            value=count,
            namespace=NAMESPACE,
            # Named, or that of the environment becomes a dimension that no alarm looks for.
            default_dimensions={"outcome": outcome, "service": FN_ORDER_TASKS.name},
        ):
            continue
