"""Builds what the handlers need, once per process, from the environment.

The local engine calls `use` with its own parts before it imports a handler; on AWS nothing is called and the
first invocation builds everything from the variables the stack has set.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from lambdas.telemetry import logger
from muster.brokers.connect import connect
from muster.budget import CallBudget, Priority
from muster.claims import ClaimChannel, SqsChannel, ValkeyChannel
from muster.clients import aws_client, valkey_client
from muster.clock import SystemClock
from muster.deps import Deps
from muster.errors import TryLater
from muster.functions import invoke, job_pool_event
from muster.launchers.port import Launch, TaskKind
from muster.maintenance import Batch
from muster.orders import FillCheck, OrderDeps
from muster.queues import SqsCommands
from muster.settings import Settings
from muster.store import Store
from muster.traces import Spans
from muster.vault import secrets_reader

if TYPE_CHECKING:
    from muster.jobs import Jobs
    from muster.jobs.capacity import Launch as JobLaunch


@dataclass(frozen=True, slots=True)
class JobWiring:
    """Job pools on the same store: how a worker is launched, and how a capacity check is asked for."""

    jobs: Jobs
    launch: JobLaunch
    wake: Callable[[str], None]  #: pool_manager looks at this pool now
    look_after: Callable[[], None]  #: maintenance_worker reaps all pools now


@dataclass(frozen=True, slots=True)
class Wiring:
    """The parts of one process. `deps` differs by priority: who pays how much of the call budget."""

    settings: Settings
    sqs: Any
    deps: Callable[[Priority], Deps]
    #: Start these batches of a sweep, asynchronously and in parallel.
    invoke_batches: Callable[[Sequence[Batch]], None]
    #: Task ids on one container instance (draining).
    tasks_on: Callable[[str], list[str]]
    orders: OrderDeps
    #: None where this process looks after no job pools.
    jobs: JobWiring | None = None


log = logger("wiring")

_wiring: Wiring | None = None


def use(wiring: Wiring) -> None:
    """Let the handlers of this process work with these parts."""
    global _wiring
    _wiring = wiring


def wired() -> Wiring:
    """The parts of this process, built at the first call."""
    if _wiring is None:
        use(from_settings(Settings.from_env(os.environ)))
    assert _wiring is not None
    return _wiring


def from_settings(settings: Settings) -> Wiring:
    """The parts of a function on AWS."""
    from muster.jobs.connection import on_store
    from muster.launchers.ecs import EcsLauncher, ecs_client

    store = Store(valkey_client(settings), wait_replica=settings.valkey_wait_replica)
    sqs, functions = aws_client(settings, "sqs"), aws_client(settings, "lambda")
    ecs = ecs_client(settings.region, settings.aws_endpoint or None)

    def launcher(priority: Priority) -> EcsLauncher:
        return EcsLauncher(
            ecs,
            settings.cluster,
            settings.task_definition,
            settings.capacity_provider,
            settings.container,
            CallBudget(store, priority),
            time.sleep,
        )

    spans = Spans(settings.otlp_endpoint, "muster-worker-control")

    def deps(priority: Priority) -> Deps:
        return Deps(
            store=store,
            launcher=launcher(priority),
            channel=claim_channel(settings, store.client, sqs),
            commands=SqsCommands(sqs, settings.queue_worker_control),
            clock=SystemClock(),
            pool=settings.pool,
            version=settings.version,
            wake_pool=lambda: _wake(functions, settings.fn_pool_manager, {"source": "muster.claim"}),
            spans=spans,
            repairs=launcher(Priority.REPAIR),
        )

    def invoke_batches(batches: Sequence[Batch]) -> None:
        for batch in batches:
            invoke(
                functions, settings.fn_maintenance_worker, {"source": "muster.sweep", "batch": asdict(batch)}
            )

    scheduler = aws_client(settings, "scheduler")

    def plan(check: FillCheck, pause: timedelta) -> None:
        """A one-shot schedule that puts the check on the queue: FIFO queues have no delay of their own."""
        name = sha256(f"{check.user_id}|{check.order_id}|{check.look}".encode()).hexdigest()
        at = datetime.now(UTC) + pause
        try:
            scheduler.create_schedule(
                Name=name,
                ScheduleExpression=f"at({at:%Y-%m-%dT%H:%M:%S})",
                FlexibleTimeWindow={"Mode": "OFF"},
                ActionAfterCompletion="DELETE",
                Target={
                    "Arn": settings.order_tasks_arn,
                    "RoleArn": settings.scheduler_role_arn,
                    "Input": check.body(),
                    "SqsParameters": {"MessageGroupId": check.order_id},
                },
            )
        except scheduler.exceptions.ConflictException:
            return  # a repeat of this check has planned it already
        except (BotoCoreError, ClientError) as away:
            raise TryLater(f"the next fill check could not be planned ({away})") from away

    orders = OrderDeps(store, secrets_reader(aws_client(settings, "secretsmanager")), connect, plan)

    def launch_job(pool: str, worker_id: str, pin: str | None) -> None:
        """The image is pinned per pool: what runs already keeps the one it was started with."""
        image = pin or settings.job_task_definition
        launcher(Priority.REFILL).run(Launch(TaskKind.JOB, pool, launch_id=worker_id, image=image))

    job_wiring = JobWiring(
        on_store(store, settings.valkey_url),
        launch_job,
        lambda pool: _wake(functions, settings.fn_pool_manager, job_pool_event(pool)),
        lambda: _wake(functions, settings.fn_maintenance_worker, {"source": "muster.jobs"}),
    )
    tasks_on = launcher(Priority.REPAIR).tasks_on
    return Wiring(settings, sqs, deps, invoke_batches, tasks_on, orders, job_wiring)


def claim_channel(settings: Settings, valkey: Any, sqs: Any) -> ClaimChannel:
    if settings.claim_channel == "valkey":
        return ValkeyChannel(valkey, settings.pool)
    return SqsChannel(sqs, settings.queue_pool_claim)


def _wake(functions: Any, name: str, event: dict[str, Any]) -> None:
    """Best effort: whoever asks must not fail because of it; the schedule is the safety net."""
    try:
        invoke(functions, name, event)
    except TryLater as away:
        log.warning("a function was not woken", function=name, reason=str(away))
