"""pool_manager: every five minutes, and when a claim takes the pool below half, bring it to its target."""

from __future__ import annotations

from typing import Any

from lambdas.telemetry import Metric, logger, metrics
from lambdas.wiring import wired
from muster.blueprint import FN_POOL_MANAGER
from muster.budget import Priority
from muster.warm_pool import manage, target_of

log = logger(FN_POOL_MANAGER.name)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:  # noqa: ARG001 - both triggers mean the same
    wiring = wired()
    deps = wiring.deps(Priority.REFILL)
    with metrics(FN_POOL_MANAGER.name) as emitter:
        target = target_of(deps, wiring.settings.pool_target)
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
