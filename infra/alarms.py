"""Every alarm: what it watches, when it speaks, and the page that says what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aws_cdk import aws_cloudwatch as cloudwatch

from infra.metrics import Metrics
from muster import blueprint

_ABOVE = cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD
_BELOW = cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD
_QUIET = cloudwatch.TreatMissingData.NOT_BREACHING
_SILENCE_IS_BAD = cloudwatch.TreatMissingData.BREACHING


@dataclass(frozen=True, slots=True)
class Alarm:
    """`name` without the environment is also the name of its page in docs/runbooks/."""

    name: str
    says: str
    metric: cloudwatch.IMetric
    threshold: float
    comparison: cloudwatch.ComparisonOperator = _ABOVE
    periods: int = 1
    missing: cloudwatch.TreatMissingData = _QUIET

    @property
    def runbook(self) -> str:
        return f"{self.name.removeprefix('{env}-')}.md"


def alarms(metrics: Metrics) -> Iterator[Alarm]:
    """The whole list. A new entry needs a page of its name, or the tests fail."""
    yield Alarm(
        blueprint.Alarm.ORCHESTRATOR_DLQ,
        "A worker command failed three times, or can never work.",
        metrics.visible(metrics.queues.worker_control_dlq),
        0,
    )
    yield Alarm(
        blueprint.Alarm.ORDER_TASKS_DLQ,
        "An order check failed three times, or can never work.",
        metrics.visible(metrics.queues.order_tasks_dlq),
        0,
    )
    yield Alarm(
        "{env}-orders-differ",
        "Worker and broker said different things of an order; the broker's word is on record.",
        metrics.differs(),
        0,
    )
    yield Alarm(
        "{env}-function-errors",
        "Functions of the control plane raise errors.",
        metrics.functions_sum("Errors"),
        5,
    )
    yield Alarm(
        "{env}-function-throttles",
        "Lambda refuses invocations: concurrency is used up.",
        metrics.functions_sum("Throttles"),
        10,
    )
    yield Alarm(
        "{env}-queue-age",
        "The oldest message has waited longer than its queue's visibility timeout.",
        metrics.oldest_in_visibilities(),
        1,
        periods=3,
    )
    yield Alarm(
        "{env}-pool-hit-rate",
        "Fewer than 80 % of starts found a warm worker.",
        metrics.hit_rate(),
        80,
        comparison=_BELOW,
        periods=3,
    )
    yield Alarm(
        "{env}-given-up",
        "A user's worker crashed 20 times in a row and is not started any more.",
        metrics.own("GivenUp", "Sum", minutes=5),
        0,
    )
    yield Alarm(
        "{env}-unaccounted",
        "Accepted starts and their ends do not add up.",
        metrics.own("Unaccounted", "Maximum"),
        0,
        periods=3,
    )
    yield Alarm(
        "{env}-leases-lost",
        "Workers lose their marks while they run.",
        metrics.leases_lost(),
        5,
    )
    yield Alarm(
        "{env}-sweep-slow",
        "A sweep takes longer than 45 s and eats into the next one.",
        metrics.own("SweepSeconds", "Maximum"),
        blueprint.SWEEP_ALARM.total_seconds(),
        periods=3,
    )
    yield Alarm(
        "{env}-sweep-missing",
        "No sweep has finished for five minutes: nothing heals by itself.",
        metrics.own("SweepSeconds", "SampleCount", minutes=5),
        1,
        comparison=_BELOW,
        missing=_SILENCE_IS_BAD,
    )
    yield Alarm(
        "{env}-jobs-waiting",
        "A job has waited for a worker for more than ten minutes.",
        metrics.own("JobsOldestSeconds", "Maximum"),
        600,
        periods=3,
    )
    yield Alarm(
        "{env}-jobs-poisoned",
        "A job failed as often as it may and will not be tried again.",
        metrics.own("JobsPoisoned", "Maximum"),
        0,
    )
    yield Alarm(
        "{env}-valkey-evictions",
        "Valkey evicts keys: marks may vanish under live workers.",
        metrics.valkey("Evictions", "Sum"),
        0,
    )
    yield Alarm(
        "{env}-valkey-memory",
        "Valkey is over 75 % full; at 100 % it refuses writes and starts fail.",
        metrics.valkey("DatabaseMemoryUsagePercentage", "Maximum"),
        75,
        periods=5,
    )
    yield Alarm(
        "{env}-valkey-replication-lag",
        "A Valkey replica is more than 1 s behind: a failover now would be slow, or lose writes.",
        metrics.valkey("ReplicationLag", "Maximum"),
        1,
        periods=5,
    )
    yield Alarm(
        "{env}-api-unhealthy",
        "A target of the load balancer fails its health checks.",
        metrics.unhealthy_targets(),
        0,
        periods=5,
    )
