"""maintenance: once a minute, cut the fleet into batches and hand them to maintenance_worker."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.metrics import MetricUnit

from lambdas.telemetry import Metric, logger, metrics, scrubbed_errors
from lambdas.wiring import wired
from muster.blueprint import FN_MAINTENANCE
from muster.budget import Priority
from muster.maintenance import sweep

log = logger(FN_MAINTENANCE.name)


@scrubbed_errors
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:  # noqa: ARG001 - a schedule says nothing
    wiring = wired()
    run_id = context.aws_request_id
    with metrics(FN_MAINTENANCE.name) as emitter:
        if wiring.jobs is not None:
            wiring.jobs.look_after()
        report = sweep(wiring.deps(Priority.REPAIR), run_id, wiring.invoke_batches)
        if report.busy:
            log.warning("the sweep before is still going", run_id=run_id, running=report.busy)
        else:
            emitter.add(Metric.SWEEP_SECONDS, report.seconds, MetricUnit.Seconds)
            emitter.add(Metric.SWEEP_USERS, report.users)
            emitter.add(Metric.ORPHANS_STOPPED, report.orphans_stopped)
            log.info("sweep cut", run_id=run_id, users=report.users, batches=report.batches,
                     orphans_stopped=report.orphans_stopped, suspects=report.suspects)  # fmt: skip
    return {"run_id": run_id, "users": report.users, "batches": report.batches, "busy": report.busy}
