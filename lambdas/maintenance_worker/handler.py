"""maintenance_worker: a batch of a sweep, the job pools, a task that stopped, an instance that drains."""

from __future__ import annotations

from typing import Any

from lambdas.job_pools import look_after
from lambdas.telemetry import Emitter, Metric, logger, metrics, scrubbed_errors
from lambdas.wiring import wired
from muster.blueprint import FN_MAINTENANCE_WORKER, INSTANCE_DRAINING, TASK_STOPPED
from muster.budget import Priority
from muster.errors import BadCommand
from muster.maintenance import Batch, drain, sweep_batch, task_stopped
from muster.model import Phase

log = logger(FN_MAINTENANCE_WORKER.name)

#: The sum over a sweep's batches is the fleet. Stopped users leave the index, so they are not counted.
_METRIC_OF = {
    Phase.STARTING: Metric.WORKERS_STARTING,
    Phase.CONNECTING: Metric.WORKERS_CONNECTING,
    Phase.READY: Metric.WORKERS_READY,
    Phase.DRAINING: Metric.WORKERS_DRAINING,
    Phase.BACKING_OFF: Metric.WORKERS_BACKING_OFF,
    Phase.FAILED: Metric.WORKERS_FAILED,
}


@scrubbed_errors
def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:  # noqa: ARG001
    with metrics(FN_MAINTENANCE_WORKER.name) as emitter:
        match event:
            case {"batch": {"run_id": str(run_id), "number": int(number), "buckets": list(buckets)}}:
                return _batch(Batch(run_id, number, tuple(buckets)), emitter)
            case {"source": "muster.jobs"}:
                return _jobs(emitter)
            case {"detail-type": TASK_STOPPED.detail_type, "detail": dict(detail)}:
                return _task(detail, emitter)
            case {"detail-type": INSTANCE_DRAINING.detail_type, "detail": dict(detail)}:
                return _instance(detail)
            case _:
                raise BadCommand(f"neither a batch nor a known ECS event: {sorted(event)}")


def _batch(batch: Batch, emitter: Emitter) -> dict[str, Any]:
    report = sweep_batch(wired().deps(Priority.REPAIR), batch)
    emitter.add(Metric.RESTARTS, report.restarts)
    emitter.add(Metric.GIVEN_UP, report.given_up)
    emitter.add(Metric.UNACCOUNTED, report.unaccounted)
    for phase, metric in _METRIC_OF.items():
        emitter.add(metric, report.phases.get(phase, 0))
    if report.brake:
        log.warning("brake: many marks vanished at once, nothing is killed", run_id=batch.run_id)
    log.info("batch swept", run_id=batch.run_id, batch=batch.number, users=report.users,
             restarts=report.restarts, stopped=report.stopped, forgotten=report.forgotten)  # fmt: skip
    return {"users": report.users, "restarts": report.restarts, "stopped": report.stopped}


def _jobs(emitter: Emitter) -> dict[str, Any]:
    wiring = wired()
    if wiring.jobs is None:
        raise BadCommand("this deployment has no job pools")
    released = look_after(wiring.jobs, emitter)
    log.info("job pools looked after", released=released)
    return {"released": released}


def _task(detail: dict[str, Any], emitter: Emitter) -> dict[str, Any]:
    """Events come at least once and unordered; what a task held is cleared by its id, so it is harmless."""
    if detail.get(TASK_STOPPED.status_field) != TASK_STOPPED.status:
        return {"done": "not stopped"}
    task_id, reason = detail["taskArn"], detail.get("stoppedReason") or _exit_of(detail)
    done = task_stopped(wired().deps(Priority.REPAIR), task_id, reason)
    if done == "repair sent":
        emitter.add(Metric.RESTARTS, 1)
    log.info("task stopped", task_id=task_id, reason=reason, done=done, correlation_id=task_id)
    return {"done": done}


def _exit_of(detail: dict[str, Any]) -> str:
    codes = [c["exitCode"] for c in detail.get("containers", ()) if "exitCode" in c]
    return f"exit code {codes[0]}" if codes else "its task ended"


def _instance(detail: dict[str, Any]) -> dict[str, Any]:
    if detail.get(INSTANCE_DRAINING.status_field) != INSTANCE_DRAINING.status:
        return {"done": "not draining"}
    wiring = wired()
    tasks = wiring.tasks_on(detail["containerInstanceArn"])
    moved = drain(wiring.deps(Priority.REPAIR), tasks)
    log.info("instance draining", instance=detail["containerInstanceArn"], tasks=len(tasks), moved=moved)
    return {"done": "draining", "tasks": len(tasks), "moved": moved}
