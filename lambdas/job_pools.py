"""What pool_manager and maintenance_worker do for job pools: launch what is missing, reap what is lost."""

from __future__ import annotations

from aws_lambda_powertools.metrics import MetricUnit

from lambdas.telemetry import Emitter, Metric
from lambdas.wiring import JobWiring
from muster.clock import SystemClock
from muster.jobs.capacity import ensure_capacity
from muster.jobs.reaper import reap


def ensure(wiring: JobWiring, pools: list[str]) -> int:
    """Launch the workers these pools lack; how many were launched."""
    return sum(len(ensure_capacity(wiring.jobs, pool, wiring.launch).launched) for pool in pools)


def look_after(wiring: JobWiring, emitter: Emitter) -> int:
    """Reap every pool, ask for capacity where work waits, and report; how many claims were ended.

    The safety net behind enqueue and boot: a job whose wake-up was lost waits for one sweep at most.
    """
    released = queued = running = poisoned = 0
    oldest = 0.0
    for pool in wiring.jobs.work.pools():
        released += reap(wiring.jobs, pool, SystemClock()).released
        counts = wiring.jobs.work.pool(pool).counts()
        queued, running, poisoned = (
            queued + counts.pending,
            running + counts.claimed,
            poisoned + counts.poisoned,
        )
        oldest = max(oldest, counts.oldest_pending_s)
        if counts.pending:
            wiring.wake(pool)
    emitter.add(Metric.JOBS_QUEUED, queued)
    emitter.add(Metric.JOBS_RUNNING, running)
    emitter.add(Metric.JOBS_POISONED, poisoned)
    emitter.add(Metric.JOBS_OLDEST_SECONDS, oldest, MetricUnit.Seconds)
    return released
