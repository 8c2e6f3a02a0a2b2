"""Logger and metrics of the functions: JSON with a correlation id, and EMF with the names of the design."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import wraps
from typing import Any, TypeVar

from aws_lambda_powertools import Logger
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider

from muster.scrub import guard_records, scrub, scrubbed

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
    """Scrubbed twice: as text for this logger, and as records for the loggers of the libraries, whose
    handler on AWS is the runtime's own and writes past standard output."""
    guard_records()
    return Logger(service=function, log_uncaught_exceptions=False, stream=scrubbed(sys.stdout))


T = TypeVar("T")


def scrubbed_errors(handler: Callable[[dict[str, Any], Any], T]) -> Callable[[dict[str, Any], Any], T]:
    """The runtime itself writes down what a handler raises: without this, as it was raised."""

    @wraps(handler)
    def handle(event: dict[str, Any], context: Any) -> T:
        try:
            return handler(event, context)
        except Exception as failed:
            if (clean := scrub(str(failed))) == str(failed):
                raise
            raise RuntimeError(f"{type(failed).__name__}: {clean}") from None

    return handle


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
