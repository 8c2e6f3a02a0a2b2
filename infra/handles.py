"""What one stack hands to the next: objects, no names to guess.

The local environment builds the same objects from constants, so that the control plane does not
know whether a VPC, a cluster and a cache exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs

from infra.acknowledge import acknowledge_wildcard
from infra.config import Environment, Flavour
from infra.permissions import GRANTS, UNSCOPED, On, Role
from muster import blueprint

#: CloudWatch namespace of the metrics the code emits.
NAMESPACE = "Muster"

#: Why an ARN may end in "/*" under a fixed parent.
RUNTIME_NAMES = "These things get their names while the system runs; the parent in the ARN is exact."


@dataclass(frozen=True, slots=True)
class Scope:
    """Where an action is allowed: resources, and the conditions that narrow them further.

    `because` is the reason for a resource that ends in a wildcard; one without a reason fails the checks.
    """

    resources: Sequence[str]
    conditions: Mapping[str, Any] = field(default_factory=dict)
    because: str | None = None


def grant(role: iam.IRole, name: Role, scopes: Mapping[On, Scope], cache: Cache) -> None:
    """Give `role` exactly what `infra.permissions` lists for it, and its own Valkey user."""
    for entry in GRANTS[name]:
        allow(role, entry.actions, scopes[entry.on])
    if resources := cache.connect.get(name):
        allow(role, (f"{cache.flavour}:Connect",), Scope(resources))


def allow(role: iam.IRole, actions: Sequence[str], scope: Scope) -> None:
    """Allow `actions` within `scope`; a wildcard in it is acknowledged with the reason it gives."""
    role.add_to_principal_policy(
        iam.PolicyStatement(
            actions=list(actions), resources=list(scope.resources), conditions=dict(scope.conditions)
        )
    )
    for resource in scope.resources:
        if resource.endswith("*") and scope.because:
            acknowledge_wildcard(role, resource, scope.because)


@dataclass(frozen=True, slots=True)
class Placement:
    """Where in the VPC something runs."""

    vpc: ec2.IVpc
    subnets: ec2.SubnetSelection
    security_group: ec2.ISecurityGroup


@dataclass(frozen=True, slots=True)
class Queues:
    """The blueprint's queues, as deployed."""

    worker_control: sqs.Queue
    worker_control_dlq: sqs.Queue
    order_tasks: sqs.Queue
    order_tasks_dlq: sqs.Queue
    pool_claim: sqs.Queue

    def scopes(self) -> dict[On, Scope]:
        return {
            On.WORKER_CONTROL_QUEUE: Scope([self.worker_control.queue_arn]),
            On.WORKER_CONTROL_DLQ: Scope([self.worker_control_dlq.queue_arn]),
            On.ORDER_TASKS_QUEUE: Scope([self.order_tasks.queue_arn]),
            On.ORDER_TASKS_DLQ: Scope([self.order_tasks_dlq.queue_arn]),
            On.POOL_CLAIM_QUEUE: Scope([self.pool_claim.queue_arn]),
        }

    def variables(self) -> dict[str, str]:
        return {
            "MUSTER_QUEUE_WORKER_CONTROL": self.worker_control.queue_url,
            "MUSTER_QUEUE_WORKER_CONTROL_DLQ": self.worker_control_dlq.queue_url,
            "MUSTER_QUEUE_ORDER_TASKS": self.order_tasks.queue_url,
            "MUSTER_QUEUE_ORDER_TASKS_DLQ": self.order_tasks_dlq.queue_url,
            "MUSTER_QUEUE_POOL_CLAIM": self.pool_claim.queue_url,
        }


@dataclass(frozen=True, slots=True)
class Cache:
    """The Valkey server: where it is, and as whom each role connects."""

    flavour: str
    name: str
    url: str
    cluster_mode: bool
    #: Node names, for the metrics CloudWatch keeps per node.
    nodes: Sequence[str]
    users: Mapping[Role, str]
    connect: Mapping[Role, Sequence[str]]

    def variables(self, role: Role) -> dict[str, str]:
        variables = {
            "MUSTER_VALKEY_URL": self.url,
            "MUSTER_VALKEY_CLUSTER": str(self.cluster_mode).lower(),
            "MUSTER_VALKEY_WAIT_REPLICA": str(self.flavour == Flavour.ELASTICACHE).lower(),
        }
        if user := self.users.get(role):
            # The IAM token is signed for the name of the cluster and the service that runs it.
            variables |= {
                "MUSTER_VALKEY_USER": user,
                "MUSTER_VALKEY_NAME": self.name,
                "MUSTER_VALKEY_IAM_SERVICE": self.flavour,
            }
        return variables


@dataclass(frozen=True, slots=True)
class Fleet:
    """Where workers run and as what."""

    cluster_name: str
    cluster_arn: str
    capacity_provider: str
    task_definition_arn: str
    job_task_definition_arn: str
    #: Every revision of the same: a pool may be pinned to an older one.
    job_task_definition_arns: str
    container: str
    version: str
    task_arns: str
    passed_roles: Sequence[str]

    def scopes(self) -> dict[On, Scope]:
        in_cluster = {"ArnEquals": {"ecs:cluster": self.cluster_arn}}
        return {
            On.TASK_DEFINITIONS: Scope([self.task_definition_arn], in_cluster),
            On.JOB_TASK_DEFINITIONS: Scope([self.job_task_definition_arns], in_cluster, RUNTIME_NAMES),
            On.TASKS: Scope([self.task_arns], in_cluster, RUNTIME_NAMES),
            On.NEW_TASKS: Scope(
                [self.task_arns], {"StringEquals": {"ecs:CreateAction": "RunTask"}}, RUNTIME_NAMES
            ),
            On.TASK_LIST: Scope(["*"], in_cluster, UNSCOPED["ecs:ListTasks"]),
            On.TASK_ROLES: Scope(
                list(self.passed_roles),
                {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}},
            ),
        }

    def variables(self) -> dict[str, str]:
        return {
            "MUSTER_LAUNCHER": "ecs",
            "MUSTER_CLUSTER": self.cluster_name,
            "MUSTER_TASK_DEFINITION": self.task_definition_arn,
            "MUSTER_JOB_TASK_DEFINITION": self.job_task_definition_arn,
            "MUSTER_CAPACITY_PROVIDER": self.capacity_provider,
            "MUSTER_CONTAINER": self.container,
        }


def shared_variables(environment: Environment, version: str) -> dict[str, str]:
    """Settings that every function, worker and API task has."""
    return {
        # Lambda sets it; ECS on EC2 does not.
        "MUSTER_REGION": environment.region,
        "MUSTER_ENV": environment.name,
        "MUSTER_VERSION": version,
        "MUSTER_POOL": "default",
        "MUSTER_POOL_TARGET": str(environment.pool_target),
        "MUSTER_POOL_ADAPTIVE": str(environment.pool_adaptive).lower(),
        "MUSTER_POOL_WINDOWS": environment.pool_windows,
        "MUSTER_POOL_CAP": str(environment.pool_cap),
        "MUSTER_CLAIM_CHANNEL": environment.claim_channel.value,
        "MUSTER_OTLP_ENDPOINT": environment.otlp_endpoint,
        "POWERTOOLS_SERVICE_NAME": "muster",
        "POWERTOOLS_METRICS_NAMESPACE": NAMESPACE,
        "POWERTOOLS_LOG_LEVEL": "INFO",
    }


#: The blueprint entry of each role that is a function.
FUNCTION_OF = {Role(function.name): function for function in blueprint.FUNCTIONS}
