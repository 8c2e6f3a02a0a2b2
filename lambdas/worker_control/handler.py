"""worker_control: a batch of command messages, each of which ends done, parked, or coming back by itself."""

from __future__ import annotations

from typing import Any

from lambdas.records import answer, parked
from lambdas.telemetry import Metric, logger, metrics, scrubbed_errors
from lambdas.wiring import wired
from muster.blueprint import FN_WORKER_CONTROL
from muster.budget import Priority
from muster.commands import Command, from_ms, parse_command
from muster.errors import BadCommand, MusterError, Refused
from muster.lifecycle import Outcome, apply

log = logger(FN_WORKER_CONTROL.name)

_METRIC_OF = {
    Outcome.CLAIMED: Metric.POOL_HIT,
    Outcome.LAUNCHED: Metric.POOL_MISS,
    Outcome.FAILED: Metric.GIVEN_UP,
}


@scrubbed_errors
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    failures = _failures(event["Records"])
    return answer(event, context, wired().settings.queue_worker_control, failures)


def _failures(records: list[dict[str, Any]]) -> dict[str, MusterError]:
    """Message id -> why it must come back. Parsed first, so that a bad record never meets its neighbours."""
    wiring = wired()
    failures: dict[str, MusterError] = {}
    commands: list[tuple[dict[str, Any], Command]] = []
    for record in records:
        try:
            sent_at = from_ms(int(record["attributes"]["SentTimestamp"]))
            command = parse_command(record["body"], message_id=record["messageId"], sent_at=sent_at)
            commands.append((record, command))
        except BadCommand as bad:
            _park(record, bad, failures)
    deps = wiring.deps(Priority.START)
    results = apply([command for _, command in commands], deps)
    deps.spans.flush()
    with metrics(FN_WORKER_CONTROL.name) as emitter:
        for (record, command), result in zip(commands, results, strict=True):
            if isinstance(result, Refused):
                _park(record, result, failures)
            elif isinstance(result, MusterError):
                failures[record["messageId"]] = result
            elif metric := _METRIC_OF.get(result):
                emitter.add(metric, 1)
            log.info(
                "command comes back" if record["messageId"] in failures else "command handled",
                correlation_id=command.command_id,
                user_id=command.user_id,
                action=command.action.value,
                cause=command.start_cause.value,
                result=str(result),
            )
    return failures


def _park(record: dict[str, Any], why: MusterError, failures: dict[str, MusterError]) -> None:
    if away := parked(record, wired().settings.queue_worker_control_dlq, why):
        failures[record["messageId"]] = away
    else:
        log.warning("record parked", message_id=record["messageId"], reason=str(why))
