"""Logger and metrics of the functions: JSON with a correlation id, and EMF with the names of the design."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider

NAMESPACE = "Muster"


class Metric(StrEnum):
    """Every metric there is. Never a user id as a dimension."""

    START_LATENCY = "StartLatency"
    POOL_IDLE = "PoolIdle"
    POOL_TARGET = "PoolTarget"
    POOL_HIT = "PoolHit"
    POOL_MISS = "PoolMiss"
    RESTARTS = "Restarts"
    ORPHANS_STOPPED = "OrphansStopped"
    LEASES_LOST = "LeasesLost"
    SWEEP_SECONDS = "SweepSeconds"
    SWEEP_USERS = "SweepUsers"
    GIVEN_UP = "GivenUp"
    UNACCOUNTED = "Unaccounted"
    JOBS_QUEUED = "JobsQueued"
    JOBS_RUNNING = "JobsRunning"
    JOBS_POISONED = "JobsPoisoned"
    JOBS_OLDEST_SECONDS = "JobsOldestSeconds"
    FILL_CHECKS = "FillChecks"
    WORKERS_STARTING = "WorkersStarting"
    WORKERS_CONNECTING = "WorkersConnecting"
    WORKERS_READY = "WorkersReady"
    WORKERS_DRAINING = "WorkersDraining"
    WORKERS_BACKING_OFF = "WorkersBackingOff"
    WORKERS_FAILED = "WorkersFailed"


def logger(function: str) -> Logger:
    return Logger(service=function, log_uncaught_exceptions=False)


class Emitter:
    """Collects the metrics of one invocation."""

    def __init__(self, function: str) -> None:
        self._provider = AmazonCloudWatchEMFProvider(
            metric_set={}, dimension_set={}, metadata_set={}, namespace=NAMESPACE, service=function
        )
        self.empty = True

    def add(self, metric: Metric, value: float, unit: MetricUnit = MetricUnit.Count) -> None:
        self._provider.add_metric(name=metric.value, unit=unit, value=value)
        self.empty = False

    def flush(self) -> None:
        if not self.empty:
            self._provider.flush_metrics()


@contextmanager
def metrics(function: str) -> Iterator[Emitter]:
    """One invocation's metrics, written out at its end, also when it failed."""
    emitter = Emitter(function)
    try:
        yield emitter
    finally:
        emitter.flush()
