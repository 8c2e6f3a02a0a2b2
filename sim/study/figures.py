"""Every figure a study stands on, with where it comes from. A measured one, a limit, or an assumption."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from muster import blueprint, cost


class Origin(StrEnum):
    MEASURED = "measured"  #: somebody ran it and took the time
    LIMIT = "limit"  #: a quota or a rule of AWS
    DECIDED = "decided"  #: a number of the blueprint
    ASSUMED = "assumed"  #: nobody knows before the first real day; change it and run again


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    unit: str
    origin: Origin
    how: str


WARM_READY = Figure(
    blueprint.AWS_WARM_READY.total_seconds(), "s", Origin.MEASURED, "on AWS, message to ready, by a claim"
)
COLD_READY = Figure(
    blueprint.AWS_COLD_READY.total_seconds(), "s", Origin.MEASURED, "on AWS, message to ready, by RunTask"
)
COMMAND_RUN = Figure(
    cost.COMMAND_RUN_S, "s", Origin.MEASURED, "one command in worker_control, locally, rounded up"
)
PER_INSTANCE = Figure(
    blueprint.WORKERS.tasks_per_instance,
    "workers",
    Origin.DECIDED,
    "r6i.large: 2048 / 64 CPU units, two left free",
)
MUTATE_RATE = Figure(
    blueprint.ECS_MUTATE.per_second, "calls/s", Origin.LIMIT, "ECS: RunTask and StopTask, account and Region"
)
MUTATE_BURST = Figure(
    blueprint.ECS_MUTATE.burst, "calls", Origin.LIMIT, "ECS: RunTask and StopTask, account and Region"
)
READ_RATE = Figure(
    blueprint.ECS_READ.per_second,
    "calls/s",
    Origin.LIMIT,
    "ECS: ListTasks and DescribeTasks, account and Region",
)
TASKS_PER_PAGE = Figure(blueprint.LIST_TASKS_PAGE, "tasks", Origin.LIMIT, "ECS: one page of ListTasks")
INSTANCES_PER_CLUSTER = Figure(
    5000, "instances", Origin.LIMIT, "ECS developer guide, operating at scale; can be raised"
)
FIFO_CALLS = Figure(
    300, "calls/s", Origin.LIMIT, "SQS FIFO without high throughput; our queues have it, so this is the floor"
)
CONTROL_CONCURRENCY = Figure(
    float(blueprint.FN_WORKER_CONTROL.max_concurrency or 0),
    "runs",
    Origin.DECIDED,
    "worker_control at most; half of an account's default 1000",
)
START_PATIENCE = Figure(
    (blueprint.RETRY_VISIBILITY + blueprint.RETRY_VISIBILITY_LATER).total_seconds(),
    "s",
    Origin.DECIDED,
    "from the first to the third and last receive of a start whose call was throttled",
)
SWEEP_EVERY = Figure(60, "s", Origin.DECIDED, "every sweep lists every task once")

SESSIONS_PER_USER = Figure(1.0, "a day", Origin.ASSUMED, "one start and one stop per user and day")
OPEN_AT = Figure(34_200, "s of the day", Origin.ASSUMED, "the market opens at 09:30")
OPEN_SHARE = Figure(0.5, "of all starts", Origin.ASSUMED, "half of the users come for the open")
OPEN_MEAN = Figure(600, "s", Origin.ASSUMED, "their delay after the open, exponential")
SESSION_MEDIAN = Figure(3 * 3600, "s", Origin.ASSUMED, "log-normal, sigma 0.8, at most 16 h")
SESSION_SIGMA = Figure(0.8, "", Origin.ASSUMED, "of the log-normal session length")
SESSION_MOST = Figure(16 * 3600, "s", Origin.ASSUMED, "nobody stays for longer")
CRASH_EVERY = Figure(500, "h", Origin.ASSUMED, "a worker crashes once in so long")
HOST_LOSS_EVERY = Figure(2000, "h", Origin.ASSUMED, "an instance is lost once in so long")


def all_figures() -> dict[str, Figure]:
    """By name, in the order of this file."""
    return {name: value for name, value in globals().items() if isinstance(value, Figure)}
