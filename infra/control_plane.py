"""The control plane: five functions, what wakes them, and exactly what each may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.cluster import broker_secrets
from infra.config import Environment
from infra.handles import (
    FUNCTION_OF,
    RUNTIME_NAMES,
    Cache,
    Fleet,
    Placement,
    Queues,
    Scope,
    grant,
    shared_variables,
)
from infra.logs import log_group
from infra.permissions import UNSCOPED, On, Role
from muster import blueprint

RUNTIME = lambda_.Runtime.PYTHON_3_14


class ControlPlaneStack(cdk.Stack):
    """Without `placement` the functions run outside a VPC: that is the local AWS endpoint."""

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        environment: Environment,
        code: Path,
        queues: Queues,
        cache: Cache,
        fleet: Fleet,
        placement: Placement | None,
        **options: Any,
    ) -> None:
        super().__init__(scope, name, **options)
        self._environment = environment
        self._queues = queues
        self._cache = cache
        self._fleet = fleet
        self._placement = placement
        self._code = lambda_.Code.from_asset(str(code))

        self._schedule_role = self._sender()
        self.roles = {role: self._role(role) for role in FUNCTION_OF}
        self.functions = {role: self._function(role) for role in FUNCTION_OF}
        for role in FUNCTION_OF:
            self._allow(role)
        self._consume(Role.WORKER_CONTROL, queues.worker_control)
        self._consume(Role.ORDER_TASKS, queues.order_tasks)
        self._schedule(Role.MAINTENANCE)
        self._schedule(Role.POOL_MANAGER)
        self._on_ecs_events()

    def _role(self, role: Role) -> iam.Role:
        """A role of our own: the default one comes with a managed policy, wider than it needs to be."""
        name = f"{role.value.title().replace('_', '')}Role"
        return iam.Role(self, name, assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))

    def _function(self, role: Role) -> lambda_.Function:
        function = FUNCTION_OF[role]
        label = role.value.title().replace("_", "")
        where: dict[str, Any] = {}
        if self._placement is not None:
            where = {
                "vpc": self._placement.vpc,
                "vpc_subnets": self._placement.subnets,
                "security_groups": [self._placement.security_group],
            }
        return lambda_.Function(
            self,
            label,
            function_name=self._environment.named(role.value),
            runtime=RUNTIME,
            architecture=lambda_.Architecture.ARM_64,
            code=self._code,
            handler=f"lambdas.{role.value}.handler.handler",
            timeout=cdk.Duration.seconds(int(function.timeout.total_seconds())),
            memory_size=function.memory_mb,
            reserved_concurrent_executions=self._concurrency(role),
            role=self.roles[role],
            log_group=log_group(self, f"{label}Logs", self._environment, role.value),
            logging_format=lambda_.LoggingFormat.JSON,
            environment=shared_variables(self._environment, self._fleet.version)
            | self._queues.variables()
            | self._cache.variables(role)
            | self._fleet.variables()
            | {
                "MUSTER_FN_MAINTENANCE_WORKER": self._environment.named(Role.MAINTENANCE_WORKER.value),
                "MUSTER_FN_POOL_MANAGER": self._environment.named(Role.POOL_MANAGER.value),
                "MUSTER_ORDER_TASKS_ARN": self._queues.order_tasks.queue_arn,
                "MUSTER_SCHEDULER_ROLE_ARN": self._schedule_role.role_arn,
            },
            **where,
        )

    def _concurrency(self, role: Role) -> int | None:
        function = FUNCTION_OF[role]
        return self._environment.queue_concurrency if function.queue else function.concurrency

    def _allow(self, role: Role) -> None:
        function = self.functions[role]
        scopes = (
            self._queues.scopes()
            | self._fleet.scopes()
            | {
                On.MAINTENANCE_WORKER_FN: Scope([self.functions[Role.MAINTENANCE_WORKER].function_arn]),
                On.POOL_MANAGER_FN: Scope([self.functions[Role.POOL_MANAGER].function_arn]),
                On.SCHEDULES: Scope(
                    [
                        self.format_arn(
                            service="scheduler",
                            resource="schedule",
                            resource_name="default/*",
                        )
                    ],
                    because=RUNTIME_NAMES,
                ),
                On.SCHEDULE_ROLE: Scope(
                    [self._schedule_role.role_arn],
                    {"StringEquals": {"iam:PassedToService": "scheduler.amazonaws.com"}},
                ),
                On.BROKER_SECRETS: broker_secrets(self, self._environment),
                On.OWN_LOGS: Scope([function.log_group.log_group_arn]),
                On.NETWORK_INTERFACES: Scope(["*"], because=UNSCOPED["ec2:CreateNetworkInterface"]),
            }
        )
        grant(self.roles[role], role, scopes, self._cache)

    def _sender(self) -> iam.Role:
        """The role a one-shot schedule uses to put an order check back on the queue."""
        role = iam.Role(self, "ScheduleRole", assumed_by=iam.ServicePrincipal("scheduler.amazonaws.com"))
        role.add_to_policy(
            iam.PolicyStatement(actions=["sqs:SendMessage"], resources=[self._queues.order_tasks.queue_arn])
        )
        return role

    def _consume(self, role: Role, queue: sqs.Queue) -> None:
        # Not SqsEventSource: it would widen the role behind the back of infra.permissions.
        lambda_.EventSourceMapping(
            self,
            f"{role.value.title().replace('_', '')}Source",
            target=self.functions[role],
            event_source_arn=queue.queue_arn,
            batch_size=blueprint.BATCH_RECORDS,
            max_concurrency=self._environment.queue_concurrency,
            report_batch_item_failures=True,
        )

    def _schedule(self, role: Role) -> None:
        function = FUNCTION_OF[role]
        if function.every is None:
            raise ValueError(f"{function.name} has no interval in the blueprint")
        late: dict[str, Any] = {}
        if role is Role.MAINTENANCE:
            age = cdk.Duration.seconds(int(blueprint.MAINTENANCE_EVENT_AGE.total_seconds()))
            late = {"max_event_age": age, "retry_attempts": blueprint.MAINTENANCE_RETRIES}
            self.functions[role].configure_async_invoke(**late)
        events.Rule(
            self,
            f"{role.value.title().replace('_', '')}Schedule",
            rule_name=self._environment.named(f"{role.user}-schedule"),
            schedule=events.Schedule.rate(cdk.Duration.seconds(int(function.every.total_seconds()))),
            targets=[targets.LambdaFunction(self.functions[role], **late)],
        )

    def _on_ecs_events(self) -> None:
        for rule in blueprint.EVENT_RULES:
            events.Rule(
                self,
                rule.name.title().replace("-", ""),
                rule_name=self._environment.named(rule.name),
                event_pattern=events.EventPattern(
                    source=["aws.ecs"],
                    detail_type=[rule.detail_type],
                    detail={"clusterArn": [self._fleet.cluster_arn], rule.status_field: [rule.status]},
                ),
                targets=[targets.LambdaFunction(self.functions[Role.MAINTENANCE_WORKER])],
            )
