"""pool_manager: bring the warm pool to its target, and job pools to the workers their jobs need.

Every five minutes, when a claim takes the warm pool below half, and for one job pool (`pool_id`) on request.
"""

from __future__ import annotations

from typing import Any

from lambdas.job_pools import ensure
from lambdas.telemetry import Metric, logger, metrics, scrubbed_errors
from lambdas.wiring import wired
from muster.blueprint import FN_POOL_MANAGER
from muster.budget import Priority
from muster.errors import BadCommand
from muster.pool_target import parse_windows
from muster.warm_pool import manage, target_of

log = logger(FN_POOL_MANAGER.name)


@scrubbed_errors
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    wiring = wired()
    if "pool_id" in event:
        if wiring.jobs is None:
            raise BadCommand("this deployment has no job pools")
        launched = ensure(wiring.jobs, [str(event["pool_id"])])
        log.info("job pool checked", pool=event["pool_id"], launched=launched)
        return {"pool_id": event["pool_id"], "launched": launched}
    deps = wiring.deps(Priority.REFILL)
    with metrics(FN_POOL_MANAGER.name) as emitter:
        settings = wiring.settings
        target = target_of(
            deps,
            settings.pool_target,
            adaptive=settings.pool_adaptive,
            cap=settings.pool_cap,
            windows=parse_windows(settings.pool_windows),
        )
        report = manage(deps, target, context.aws_request_id)
        emitter.add(Metric.POOL_IDLE, report.idle)
        emitter.add(Metric.POOL_TARGET, report.target)
    if report.trouble:
        log.warning("a pool launch failed", reason=report.trouble)
    log.info("pool managed", target=report.target, idle=report.idle, launching=report.launching,
             launched=report.launched, retired=report.retired, overdue=report.overdue)  # fmt: skip
    return {
        "target": report.target,
        "idle": report.idle,
        "launched": report.launched,
        "retired": report.retired,
    }
