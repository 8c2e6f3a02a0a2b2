"""Who may do what: every role's AWS actions and Valkey rights, in one typed place.

The stacks turn this into policies; a test records what the code really calls and compares in both
directions. Nothing here imports CDK, so that the comparison needs no synthesis to read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """Everything that runs with an identity of its own."""

    WORKER_CONTROL = "worker_control"
    ORDER_TASKS = "order_tasks"
    MAINTENANCE = "maintenance"
    MAINTENANCE_WORKER = "maintenance_worker"
    POOL_MANAGER = "pool_manager"
    WORKER = "worker"
    JOB_WORKER = "job_worker"
    API = "api"

    @property
    def user(self) -> str:
        """The role as part of a Valkey user name, which allows no underscore."""
        return self.value.replace("_", "-")


class On(StrEnum):
    """What an action is done to. The stacks know the ARNs and the conditions."""

    WORKER_CONTROL_QUEUE = "worker-control.fifo"
    WORKER_CONTROL_DLQ = "worker-control-dlq.fifo"
    ORDER_TASKS_QUEUE = "order-tasks.fifo"
    ORDER_TASKS_DLQ = "order-tasks-dlq.fifo"
    POOL_CLAIM_QUEUE = "pool-claim"
    TASK_DEFINITIONS = "the worker task definitions, in our cluster only"
    JOB_TASK_DEFINITIONS = "the job worker task definitions, in our cluster only"
    TASKS = "tasks of our cluster"
    NEW_TASKS = "tasks of our cluster, while RunTask creates them"
    TASK_LIST = "the list of our cluster's tasks"
    TASK_ROLES = "the roles of the worker tasks, passed to ECS only"
    MAINTENANCE_WORKER_FN = "the function maintenance_worker"
    POOL_MANAGER_FN = "the function pool_manager"
    SCHEDULES = "one-shot schedules of the default group"
    SCHEDULE_ROLE = "the role a schedule sends with, passed to EventBridge Scheduler only"
    BROKER_SECRETS = "secrets under the broker prefix"
    OWN_LOGS = "the function's own log group"
    NETWORK_INTERFACES = "network interfaces of the account"


class By(StrEnum):
    """Who makes the call."""

    CODE = "our code"
    LAMBDA = "the Lambda service, with the function's role"


@dataclass(frozen=True, slots=True)
class Grant:
    """Actions on one kind of thing."""

    on: On
    actions: tuple[str, ...]
    by: By = By.CODE


def _consume(queue: On) -> Grant:
    """What an SQS event source does before and after the function."""
    return Grant(queue, ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:GetQueueAttributes"), By.LAMBDA)


#: Lambda creates these interfaces before the function has a name; AWS offers no resource to scope them to.
_IN_VPC = Grant(
    On.NETWORK_INTERFACES,
    (
        "ec2:CreateNetworkInterface",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeSubnets",
        "ec2:DeleteNetworkInterface",
        "ec2:AssignPrivateIpAddresses",
        "ec2:UnassignPrivateIpAddresses",
    ),
    By.LAMBDA,
)
_LOGS = Grant(On.OWN_LOGS, ("logs:CreateLogStream", "logs:PutLogEvents"), By.LAMBDA)
_FUNCTION = (_LOGS, _IN_VPC)

_RUN_TASK = (
    Grant(On.TASK_DEFINITIONS, ("ecs:RunTask",)),
    Grant(On.NEW_TASKS, ("ecs:TagResource",)),
    Grant(On.TASK_ROLES, ("iam:PassRole",)),
    # A start that ECS knows already is adopted, after a look at it; one that is not wanted is stopped.
    Grant(On.TASKS, ("ecs:DescribeTasks", "ecs:StopTask")),
)

#: Look into a dead-letter queue, redrive from it, empty it.
_INSPECT = (
    "sqs:ReceiveMessage",
    "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibility",
    "sqs:GetQueueAttributes",
    "sqs:PurgeQueue",
)

GRANTS: dict[Role, tuple[Grant, ...]] = {
    Role.WORKER_CONTROL: (
        *_FUNCTION,
        _consume(On.WORKER_CONTROL_QUEUE),
        Grant(On.WORKER_CONTROL_QUEUE, ("sqs:ChangeMessageVisibility",)),
        Grant(On.WORKER_CONTROL_DLQ, ("sqs:SendMessage",)),
        Grant(On.POOL_CLAIM_QUEUE, ("sqs:SendMessage",)),
        *_RUN_TASK,
        Grant(On.POOL_MANAGER_FN, ("lambda:InvokeFunction",)),
    ),
    Role.ORDER_TASKS: (
        *_FUNCTION,
        _consume(On.ORDER_TASKS_QUEUE),
        Grant(On.ORDER_TASKS_QUEUE, ("sqs:ChangeMessageVisibility",)),
        Grant(On.ORDER_TASKS_DLQ, ("sqs:SendMessage",)),
        Grant(On.SCHEDULES, ("scheduler:CreateSchedule",)),
        Grant(On.SCHEDULE_ROLE, ("iam:PassRole",)),
        Grant(On.BROKER_SECRETS, ("secretsmanager:GetSecretValue",)),
    ),
    Role.MAINTENANCE: (
        *_FUNCTION,
        Grant(On.TASK_LIST, ("ecs:ListTasks",)),
        Grant(On.TASKS, ("ecs:DescribeTasks", "ecs:StopTask")),
        Grant(On.MAINTENANCE_WORKER_FN, ("lambda:InvokeFunction",)),
    ),
    Role.MAINTENANCE_WORKER: (
        *_FUNCTION,
        Grant(On.TASK_LIST, ("ecs:ListTasks",)),
        Grant(On.TASKS, ("ecs:DescribeTasks", "ecs:StopTask")),
        Grant(On.WORKER_CONTROL_QUEUE, ("sqs:SendMessage",)),
        Grant(On.POOL_MANAGER_FN, ("lambda:InvokeFunction",)),
    ),
    Role.POOL_MANAGER: (*_FUNCTION, *_RUN_TASK, Grant(On.JOB_TASK_DEFINITIONS, ("ecs:RunTask",))),
    Role.WORKER: (
        Grant(
            On.POOL_CLAIM_QUEUE, ("sqs:ReceiveMessage", "sqs:DeleteMessage", "sqs:ChangeMessageVisibility")
        ),
        Grant(On.ORDER_TASKS_QUEUE, ("sqs:SendMessage",)),
        Grant(On.BROKER_SECRETS, ("secretsmanager:GetSecretValue",)),
    ),
    Role.JOB_WORKER: (),
    Role.API: (
        Grant(On.WORKER_CONTROL_QUEUE, ("sqs:SendMessage", "sqs:GetQueueAttributes")),
        Grant(On.ORDER_TASKS_QUEUE, ("sqs:SendMessage", "sqs:GetQueueAttributes")),
        Grant(On.POOL_CLAIM_QUEUE, ("sqs:GetQueueAttributes",)),
        Grant(On.WORKER_CONTROL_DLQ, _INSPECT),
        Grant(On.ORDER_TASKS_DLQ, _INSPECT),
        # Who pushes a job asks for its worker; who launches it is pool_manager.
        Grant(On.POOL_MANAGER_FN, ("lambda:InvokeFunction",)),
    ),
}

#: Actions AWS cannot scope to a resource, with the reason each is allowed on "*".
UNSCOPED: dict[str, str] = {
    "ecs:ListTasks": "asked of a whole cluster its resource is '*'; the condition on ecs:cluster narrows it",
    "ecr:GetAuthorizationToken": "the token is for the registry of the account, not for one repository",
    "ecs:DiscoverPollEndpoint": "the agent asks the service where to connect; there is no resource",
    **dict.fromkeys(
        _IN_VPC.actions, "Lambda manages network interfaces whose names are not known before they exist"
    ),
}

# Valkey. Nobody may administer the server or empty it; key patterns keep a stolen identity to its own part.
_COMMANDS = (
    "-@all +@read +@write +@stream +@scripting +@pubsub +@transaction +@connection +@blocking "
    "-@dangerous -@admin +cluster|slots +cluster|shards +cluster|nodes +cluster|keyslot +time +wait"
)
_USERS = "~worker:* ~users:* ~task:*"
_POOL = "~pool:*"
_SWEEP = "~sweep:*"
_JOBS = "~jobs:*"
_BUDGET = "~budget:*"
#: Its callers' limits, not the budget of the AWS calls.
_API_LIMITS = "~budget:{api:*"

VALKEY_ACCESS: dict[Role, str] = {
    role: f"on {keys} resetchannels &worker:control &muster:* {_COMMANDS}"
    for role, keys in {
        Role.WORKER_CONTROL: f"{_USERS} {_POOL} {_BUDGET}",
        Role.ORDER_TASKS: f"{_USERS} ~order:*",
        Role.MAINTENANCE: f"{_USERS} {_POOL} {_SWEEP} {_BUDGET}",
        Role.MAINTENANCE_WORKER: f"{_USERS} {_POOL} {_SWEEP} {_BUDGET} {_JOBS}",
        Role.POOL_MANAGER: f"{_POOL} {_BUDGET} {_JOBS}",
        Role.WORKER: f"{_USERS} {_POOL} ~order:*",
        Role.JOB_WORKER: _JOBS,
        Role.API: f"{_USERS} {_POOL} {_SWEEP} {_JOBS} ~order:* ~api:* {_API_LIMITS}",
    }.items()
}
