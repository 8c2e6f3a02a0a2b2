"""The ECS cluster: two kinds of hosts, and what a worker and a job worker look like as tasks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs_
from constructs import Construct

from infra.acknowledge import acknowledge, acknowledge_wildcard
from infra.config import Environment
from infra.handles import NAMESPACE, RUNTIME_NAMES, Cache, Fleet, Queues, Scope, grant, shared_variables
from infra.hosts import Hosts
from infra.logs import log_group
from infra.network import NetworkStack
from infra.permissions import UNSCOPED, On, Role
from muster import blueprint

ROOT = Path(__file__).resolve().parent.parent
CONTAINER = "worker"
#: The user of the images; a number, because the host has no name for it.
UNPRIVILEGED = "10001:10001"
#: `--no-launch`: a container cannot start its peers; pool_manager does, and names the pool to each.
JOB_COMMAND = [
    "python",
    "-m",
    "worker",
    "jobs",
    "--no-launch",
    "--results",
    "/tmp/results",
]
#: How the last line of such a worker begins.
LEASE_LOST_LINE = "exit 5 (lease_lost)*"
#: A job worker that crashes at once must not spin: it has to live this long before it is restarted.
RESTART_AFTER = cdk.Duration.seconds(60)


def image(scope: Construct, name: str, dockerfile: str, **arguments: str) -> ecr_assets.DockerImageAsset:
    """An image of this repository; hashed now, built and pushed by `cdk deploy`."""
    return ecr_assets.DockerImageAsset(
        scope,
        name,
        directory=str(ROOT),
        file=dockerfile,
        platform=ecr_assets.Platform.LINUX_AMD64,
        build_args=arguments or None,
    )


def linux(scope: Construct, name: str) -> ecs.LinuxParameters:
    """No capabilities, an init process that reaps and forwards signals, and a small writable /tmp."""
    parameters = ecs.LinuxParameters(scope, name, init_process_enabled=True)
    parameters.drop_capabilities(ecs.Capability.ALL)
    parameters.add_tmpfs(
        ecs.Tmpfs(
            container_path="/tmp",
            size=64,
            mount_options=[ecs.TmpfsMountOption.RW, ecs.TmpfsMountOption.NOEXEC, ecs.TmpfsMountOption.NOSUID],
        )
    )
    return parameters


class ClusterStack(cdk.Stack):
    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        environment: Environment,
        network: NetworkStack,
        queues: Queues,
        cache: Cache,
        **options: Any,
    ) -> None:
        super().__init__(scope, name, **options)
        self._environment = environment
        self._queues = queues
        self._cache = cache
        self._name = environment.named("muster")
        self.cluster = ecs.Cluster(
            self,
            "Cluster",
            cluster_name=self._name,
            vpc=network.vpc,
            container_insights_v2=ecs.ContainerInsights.ENABLED,
        )
        self.api_hosts = Hosts(
            self,
            "Api",
            environment=environment,
            cluster=self.cluster,
            placement=network.api,
            instance=blueprint.API.instance,
            capacity=environment.api,
        )
        self.worker_hosts = Hosts(
            self,
            "Workers",
            environment=environment,
            cluster=self.cluster,
            placement=network.workers,
            instance=environment.fleet.instance,
            capacity=environment.workers,
            overhead_mb=environment.fleet.host_overhead_mb,
        )
        self.image = image(self, "WorkerImage", "Dockerfile.worker")
        # Jobs compute: their image is larger, and thousands of users' workers need not carry it.
        job_image = image(self, "JobWorkerImage", "Dockerfile.worker", PACKAGES="jobs")
        worker = self._task(Role.WORKER, self.image, ["python", "-m", "worker"])
        job_worker = self._task(Role.JOB_WORKER, job_image, JOB_COMMAND, restart=True)
        # A pool may be pinned to an earlier revision: a deployment must not retire it.
        job_worker.apply_removal_policy(cdk.RemovalPolicy.RETAIN)
        self.fleet = self._fleet(worker, job_worker)

    def _task(
        self,
        role: Role,
        built: ecr_assets.DockerImageAsset,
        command: list[str],
        *,
        restart: bool = False,
    ) -> ecs.Ec2TaskDefinition:
        label = role.value.title().replace("_", "")
        fleet = self._environment.fleet
        size = fleet.task
        definition = ecs.Ec2TaskDefinition(
            self,
            f"{label}Task",
            family=self._environment.named(role.user),
            network_mode=ecs.NetworkMode(fleet.network_mode.upper()),
            task_role=iam.Role(
                self, f"{label}Role", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com")
            ),
        )
        policy: Mapping[On, Scope] = self._queues.scopes() | {
            On.BROKER_SECRETS: broker_secrets(self, self._environment)
        }
        grant(definition.task_role, role, policy, self._cache)
        logs = log_group(self, f"{label}Logs", self._environment, role.user)
        if role is Role.WORKER:
            self._count_lost_leases(logs)
        restart_policy: dict[str, Any] = {}
        if restart:
            # Exit 0 is a worker that found no more work: it is meant to be gone.
            restart_policy = {
                "enable_restart_policy": True,
                "restart_ignored_exit_codes": [0],
                "restart_attempt_period": RESTART_AFTER,
            }
        definition.add_container(
            CONTAINER,
            container_name=CONTAINER,
            image=ecs.ContainerImage.from_docker_image_asset(built),
            command=command,
            cpu=size.cpu_units,
            memory_reservation_mib=size.soft_memory_mb,
            memory_limit_mib=size.hard_memory_mb,
            user=UNPRIVILEGED,
            privileged=False,
            readonly_root_filesystem=True,
            docker_security_options=["no-new-privileges"],
            linux_parameters=linux(self, f"{label}Linux"),
            stop_timeout=cdk.Duration.seconds(int(fleet.stop_timeout.total_seconds())),
            environment=shared_variables(self._environment, built.asset_hash)
            | self._queues.variables()
            | self._cache.variables(role)
            | ({"MUSTER_JOBS_URL": "settings:"} if role is Role.JOB_WORKER else {}),
            logging=ecs.LogDriver.aws_logs(
                stream_prefix=role.user,
                log_group=logs,
                # A full log pipe must not block a worker's heartbeat.
                mode=ecs.AwsLogDriverMode.NON_BLOCKING,
            ),
            **restart_policy,
        )
        acknowledge_wildcard(definition.obtain_execution_role(), "*", UNSCOPED["ecr:GetAuthorizationToken"])
        acknowledge(
            definition,
            "AwsSolutions-ECS2",
            "The variables are addresses and sizes; secrets are references into Secrets Manager.",
        )
        return definition

    def _count_lost_leases(self, group: logs_.LogGroup) -> None:
        """A worker that lost its mark says so last; counted here, because it has no time left to report."""
        logs_.MetricFilter(
            self,
            "LeasesLost",
            log_group=group,
            filter_pattern=logs_.FilterPattern.string_value("$.message", "=", LEASE_LOST_LINE),
            metric_namespace=NAMESPACE,
            metric_name="LeasesLost",
            metric_value="1",
        )

    def _fleet(self, worker: ecs.Ec2TaskDefinition, job_worker: ecs.Ec2TaskDefinition) -> Fleet:
        roles = [
            role.role_arn
            for definition in (worker, job_worker)
            for role in (definition.task_role, definition.obtain_execution_role())
        ]

        return Fleet(
            cluster_name=self._name,
            cluster_arn=self.cluster.cluster_arn,
            capacity_provider=self.worker_hosts.provider.capacity_provider_name,
            task_definition_arn=worker.task_definition_arn,
            job_task_definition_arn=job_worker.task_definition_arn,
            job_task_definition_arns=self.format_arn(
                service="ecs", resource="task-definition", resource_name=f"{job_worker.family}:*"
            ),
            container=CONTAINER,
            version=self.image.asset_hash,
            task_arns=self.format_arn(service="ecs", resource="task", resource_name=f"{self._name}/*"),
            passed_roles=roles,
        )


def broker_secrets(stack: cdk.Stack, environment: Environment) -> Scope:
    """Every secret under the broker prefix: one per user, made while the system runs."""
    arn = stack.format_arn(
        service="secretsmanager",
        resource="secret",
        resource_name=f"{environment.broker_secrets}*",
        arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
    )
    return Scope([arn], because=RUNTIME_NAMES)
