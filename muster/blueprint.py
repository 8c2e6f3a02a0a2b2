"""Every number of the system, once, with its unit and its reason.

The CDK stacks, the Lambda handlers, the worker and the local engine all read this module, so that
what is deployed and what is run on one machine cannot drift apart. Durations are `timedelta`;
other quantities carry their unit in the name.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Queue:
    """One SQS queue. `dead_letter` names the queue that takes what failed `max_receives` times."""

    name: str
    fifo: bool
    visibility: timedelta
    retention: timedelta
    group: str | None = None
    dead_letter: str | None = None
    max_receives: int | None = None
    #: EventBridge Scheduler gives no deduplication id of its own, so its FIFO target must take the content's.
    content_deduplication: bool = False


WORKER_CONTROL_DLQ = Queue("worker-control-dlq.fifo", True, timedelta(seconds=90), timedelta(days=14))
ORDER_TASKS_DLQ = Queue("order-tasks-dlq.fifo", True, timedelta(seconds=180), timedelta(days=14))

WORKER_CONTROL = Queue(
    "worker-control.fifo",
    True,
    timedelta(seconds=90),
    timedelta(days=1),
    "user_id",
    WORKER_CONTROL_DLQ.name,
    3,
)
ORDER_TASKS = Queue(
    "order-tasks.fifo",
    True,
    timedelta(seconds=180),
    timedelta(days=1),
    "order_id",
    ORDER_TASKS_DLQ.name,
    3,
    True,
)
#: Short retention and no dead-letter queue: an unclaimed claim is stale, the sweep starts the user again.
POOL_CLAIM = Queue("pool-claim", False, timedelta(seconds=10), timedelta(minutes=5))

#: Dead-letter queues first: a queue can only point at one that exists.
QUEUES = (WORKER_CONTROL_DLQ, ORDER_TASKS_DLQ, WORKER_CONTROL, ORDER_TASKS, POOL_CLAIM)

#: Most records one invocation gets from a FIFO queue (an SQS limit).
BATCH_RECORDS = 10


@dataclass(frozen=True, slots=True)
class Function:
    """One Lambda function: `concurrency` by default, `max_concurrency` at most; None is unbounded."""

    name: str
    timeout: timedelta
    memory_mb: int = 256
    concurrency: int | None = None
    max_concurrency: int | None = None
    queue: Queue | None = None
    every: timedelta | None = None


FN_WORKER_CONTROL = Function("worker_control", timedelta(seconds=60), 256, 50, 500, queue=WORKER_CONTROL)
FN_ORDER_TASKS = Function("order_tasks", timedelta(seconds=120), 256, 50, 500, queue=ORDER_TASKS)
FN_MAINTENANCE = Function("maintenance", timedelta(seconds=300), 256, 1, 1, every=timedelta(seconds=60))
FN_MAINTENANCE_WORKER = Function("maintenance_worker", timedelta(seconds=30), 256, 100, 100)
FN_POOL_MANAGER = Function("pool_manager", timedelta(seconds=60), 256, every=timedelta(minutes=5))

FUNCTIONS = (FN_WORKER_CONTROL, FN_ORDER_TASKS, FN_MAINTENANCE, FN_MAINTENANCE_WORKER, FN_POOL_MANAGER)

#: A handler's own limit for the calls one record makes. Visibility (90 s) is only 1.5 x the function
#: timeout, so a record must fail well before another receiver could see it.
CALL_DEADLINE = timedelta(seconds=15)

#: Asynchronous invokes of maintenance: a sweep that is a minute late is worth nothing, the next one is due.
MAINTENANCE_EVENT_AGE = timedelta(seconds=60)
MAINTENANCE_RETRIES = 0


@dataclass(frozen=True, slots=True)
class EventRule:
    """An ECS event that EventBridge hands to maintenance_worker."""

    name: str
    detail_type: str
    status_field: str
    status: str


TASK_STOPPED = EventRule("ecs-task-stopped", "ECS Task State Change", "lastStatus", "STOPPED")
INSTANCE_DRAINING = EventRule(
    "ecs-instance-draining", "ECS Container Instance State Change", "status", "DRAINING"
)
EVENT_RULES = (TASK_STOPPED, INSTANCE_DRAINING)


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 instance type as ECS sees it: 1024 CPU units are one vCPU."""

    type: str
    vcpus: int
    cpu_units: int
    memory_mb: int


M6I_LARGE = Instance("m6i.large", 2, 2048, 8192)
R6I_LARGE = Instance("r6i.large", 2, 2048, 16384)


@dataclass(frozen=True, slots=True)
class TaskSize:
    """What one task reserves (CPU units, soft memory) and may at most use (hard memory)."""

    cpu_units: int
    soft_memory_mb: int
    hard_memory_mb: int


@dataclass(frozen=True, slots=True)
class ApiService:
    """The API on its own capacity provider: CPU bound, scaled by target tracking."""

    instance: Instance = M6I_LARGE
    tasks_per_instance: int = 2
    #: 1024 units are 1 vCPU; the source table's "0.5 vCPU" is a slip.
    task: TaskSize = TaskSize(1024, 1536, 3072)
    port: int = 3001
    uvicorn_workers: int = 8
    network_mode: str = "bridge"
    min_healthy_percent: int = 100
    max_percent: int = 200
    cpu_target_percent: int = 70
    requests_per_target_per_minute: int = 1000
    scale_out_cooldown: timedelta = timedelta(seconds=60)
    scale_in_cooldown: timedelta = timedelta(seconds=300)
    deregistration_delay: timedelta = timedelta(seconds=300)


@dataclass(frozen=True, slots=True)
class WorkerFleet:
    """The workers on their own capacity provider: memory for broker sessions, hardly any CPU."""

    instance: Instance = R6I_LARGE
    #: Conservative: CPU would allow 2048 / 64 = 32 (it binds before soft memory, 16384 / 384 = 42);
    #: two places are left for the agent and for memory spikes.
    tasks_per_instance: int = 30
    task: TaskSize = TaskSize(64, 384, 1024)
    network_mode: str = "bridge"
    host_overhead_mb: int = 512
    stop_timeout: timedelta = timedelta(seconds=30)


API = ApiService()
WORKERS = WorkerFleet()
#: Many users on one host. Sized from `bench.density`: a ready worker with its session stays below 40 MiB, and
#: 300 of them idle in a quarter of a core. Soft memory leaves half as much again; the hard limit still ends a
#: leak before it hurts its neighbours. The overhead is 512 MB and 12 MB per task for its shim and log pipe.
DENSE = WorkerFleet(tasks_per_instance=200, task=TaskSize(8, 64, 256), host_overhead_mb=512 + 200 * 12)
#: The ways to fill an instance, by name: what an environment may choose and `muster cost` compares.
WORKER_PROFILES = {"seed": WORKERS, "dense": DENSE}

#: What the source measured on AWS from message to ready; the yardstick for our own figures.
AWS_WARM_READY = timedelta(milliseconds=332)
AWS_COLD_READY = timedelta(milliseconds=3103)


class Alarm(StrEnum):
    """Alarm names of the two dead-letter queues; `{env}` is filled in by the stack."""

    ORCHESTRATOR_DLQ = "{env}-orchestrator-dlq-has-messages"
    ORDER_TASKS_DLQ = "{env}-order-tasks-dlq-has-messages"


ALERTS_TOPIC = "orchestrator-alerts"

# The life of a mark, measured on the worker's own clock from BEFORE each renewal was sent:
#
#   0 s renew   10 s renew   20 s renew            25 s stop acting      30 s mark gone
#   |-----------|------------|---------------------|---------------------|
#               (renewals fail from here)          suspend side effects   exit
MARK_TTL = timedelta(seconds=30)
MARK_BEAT = timedelta(seconds=10)
STOP_ACTING_AFTER = timedelta(seconds=25)
EXIT_AFTER = timedelta(seconds=30)

#: How long a published state outlives its worker.
STATE_TTL = timedelta(seconds=60)
RESTARTING_TTL = timedelta(seconds=60)

#: A worker asked to stop gets this long to close its session; then SIGKILL.
DRAIN_GRACE = timedelta(seconds=30)
#: A successor asks again this often while the old mark still lives, and gives up after the longest
#: time an honest predecessor can hold on: its mark plus its drain.
HELD_RETRY = timedelta(milliseconds=200)
HELD_PATIENCE = MARK_TTL + DRAIN_GRACE

#: The lease of a start that has only begun. Covers the handler's own calls and one claim delivery.
START_LEASE = timedelta(seconds=20)
#: The lease of a start that was tried before: it must still stand, with its launch token, at the next retry.
RESUMED_LEASE = timedelta(seconds=60)
#: The lease of a start bound to a launched task; the sweep asks about a task still pending after it.
COLD_LEASE = timedelta(seconds=120)
#: A claim counts against the pool this long; the same as one delivery of pool-claim.
CLAIM_DEADLINE = POOL_CLAIM.visibility

#: Without capacity ECS keeps a task in PROVISIONING for up to 30 minutes; after that it is stuck.
PENDING_PATIENCE = timedelta(minutes=30)
#: A running task younger than this is booting.
BOOT_PATIENCE = timedelta(seconds=60)
#: An older one that a sweep saw without its mark gets one beat and a half to take it again; an honest worker
#: that could not renew has ended itself by the time its mark is gone.
MARKLESS_PATIENCE = timedelta(seconds=15)

#: Restart n+1 comes no sooner than BACKOFF_FIRST * 2**n after restart n, and no later than BACKOFF_MAX.
BACKOFF_FIRST = timedelta(seconds=20)
BACKOFF_MAX = timedelta(minutes=5)
GIVE_UP_AFTER = 20
#: A worker that was ready this long has proven itself: its failures are forgotten.
HEALTHY_AFTER = timedelta(seconds=60)

#: More marks than this gone at once is the store's failure, not the workers': nothing is killed.
BRAKE_SHARE = 0.20
#: Below this many missing marks the share says nothing (one of two users is 50 %).
BRAKE_MINIMUM = 5

#: Valkey keeps a small hash in one compact block while none of its values is longer than this. A task's ARN
#: is about 100 bytes; at the server's own 64 every mark and every wish would take twice the memory.
VALKEY_COMPACT_BYTES = 128

INDEX_BUCKETS = 256
#: Users one maintenance_worker looks at in one invocation (30 s, two pipelined reads per thousand).
SWEEP_BATCH_USERS = 2500
#: A sweep longer than this eats into the next one.
SWEEP_ALARM = timedelta(seconds=45)
#: The turn of a sweep's coordinator, renewed on its way. Shorter than the time to the next sweep, so that one
#: that dies (or never hears that its turn has begun) holds up none of those after it.
SWEEP_LEASE = timedelta(seconds=45)
#: A listing waits this long in all for its share of the read budget: 20 pages a second are 80,000 tasks. A
#: cell with more is not listed whole, and nobody is judged.
LIST_PATIENCE = timedelta(seconds=40)
#: How long the next sweep may ask what this one found.
SWEEP_MEMORY = timedelta(minutes=10)

#: Changes the audit keeps at hand, about; the log keeps them all.
AUDIT_LENGTH = 100_000

#: Timeline entries kept per user for `explain`: the last four to six lives.
HISTORY_LENGTH = 24
#: Starts kept of all users together, for the latency chart; about 100 bytes each.
STARTS_KEPT = 1000

POOL_TARGET = 4
POOL_BEAT = timedelta(seconds=10)
POOL_MEMBER_TTL = timedelta(seconds=30)
#: A pool launch that has not reported by then never will; its task is stopped and its place freed.
POOL_LAUNCH_DEADLINE = timedelta(minutes=5)
#: pool_manager is woken early when a claim takes idle below this share of the target.
POOL_LOW_WATER = 0.5

#: Adaptive target: the time of a refill (a cold boot with a new instance), the share of refill times that the
#: pool should serve whole, how far back the claim rate is looked at, and the budget cap.
POOL_REFILL = timedelta(minutes=3)
POOL_HIT_RATE = 0.99
POOL_DEMAND_MEMORY = timedelta(minutes=20)
POOL_CAP = 50

#: A record that may pass later comes back after this, instead of after the whole visibility timeout.
RETRY_VISIBILITY = timedelta(seconds=5)
#: ... and when that was not enough, after this: three receives then outlast an outage of half a minute.
RETRY_VISIBILITY_LATER = timedelta(seconds=30)

#: With a store that can lose acknowledged writes, begin_start and begin_stop wait for a replica this long.
REPLICA_WAIT = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class CallBucket:
    """A token bucket of the ECS API, shared by the whole account and Region."""

    name: str
    burst: int
    per_second: int


ECS_MUTATE = CallBucket("ecs-mutate", 100, 40)  #: RunTask, StopTask, ExecuteCommand
ECS_READ = CallBucket("ecs-read", 100, 20)  #: DescribeTasks, ListTasks


@dataclass(frozen=True, slots=True)
class Rate:
    """So many at once, and so many per second in the long run. `burst / per_second` is under a minute: a
    bucket that nobody drew from for so long is full, and forgotten."""

    burst: int
    per_second: int


@dataclass(frozen=True, slots=True)
class ApiLimit:
    """What one bearer of a role may ask of the API."""

    reads: Rate
    changes: Rate


#: A user has one worker to look at and to command, and orders to place. Those who run the fleet start it all
#: at once after an outage, by one script.
API_LIMITS = {
    "user": ApiLimit(Rate(200, 50), Rate(50, 10)),
    "viewer": ApiLimit(Rate(4_000, 2_000), Rate(10, 1)),
    "operator": ApiLimit(Rate(4_000, 2_000), Rate(5_000, 500)),
}

DESCRIBE_TASKS_MAX = 100
LIST_TASKS_PAGE = 100
SQS_BATCH_MAX = 10
