"""Container instances: an Auto Scaling group, its launch template and its capacity provider."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.acknowledge import acknowledge
from infra.config import Capacity, Environment
from infra.handles import RUNTIME_NAMES, Placement, Scope, allow
from infra.permissions import UNSCOPED
from muster import blueprint

# A bridge task could read the credentials of its host from the instance metadata. The hop limit of 1
# stops the answer; this rule stops the question, also after Docker or the host restarts.
_BLOCK_METADATA = """\
cat > /etc/systemd/system/block-metadata.service <<'UNIT'
[Unit]
Description=Keep containers away from the instance metadata
After=docker.service
BindsTo=docker.service
Before=ecs.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/iptables -I DOCKER-USER -i docker+ -d 169.254.169.254/32 -j DROP
[Install]
WantedBy=docker.service ecs.service
UNIT
systemctl daemon-reload
systemctl enable --now --no-block block-metadata.service"""


def agent_settings(overhead_mb: int) -> dict[str, str]:
    """The ECS agent's own settings; the cluster's name is added by the capacity provider."""
    return {
        "ECS_RESERVED_MEMORY": str(overhead_mb),
        "ECS_CONTAINER_STOP_TIMEOUT": f"{int(blueprint.WORKERS.stop_timeout.total_seconds())}s",
        # Images are named by digest, so a cached one is the right one and a start needs no registry.
        "ECS_IMAGE_PULL_BEHAVIOR": "prefer-cached",
        # The sweep asks about a task within minutes; the default of 3 h only fills the disk.
        "ECS_ENGINE_TASK_CLEANUP_WAIT_DURATION": "10m",
        "ECS_DISABLE_PRIVILEGED": "true",
        # Logs are written with the task's execution role, so the host needs no right to write any.
        "ECS_ENABLE_AWSLOGS_EXECUTIONROLE_OVERRIDE": "true",
        "ECS_ENABLE_SPOT_INSTANCE_DRAINING": "true",
    }


class Hosts(Construct):
    """One kind of instance and the capacity provider over it.

    Managed scaling counts the tasks that wait, so RunTask grows the group; with no task it shrinks to
    the minimum. The target of 100 % is what allows zero: below it ECS always keeps a spare instance.
    Managed termination protection keeps an instance with a worker on it out of every scale-in.
    """

    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        environment: Environment,
        cluster: ecs.Cluster,
        placement: Placement,
        instance: blueprint.Instance,
        capacity: Capacity,
        overhead_mb: int = blueprint.WORKERS.host_overhead_mb,
    ) -> None:
        super().__init__(scope, name)
        role = self._role(cluster, environment)
        commands = ec2.UserData.for_linux()
        for key, value in agent_settings(overhead_mb).items():
            commands.add_commands(f"echo {key}={value} >> /etc/ecs/ecs.config")
        commands.add_commands(_BLOCK_METADATA)
        template = ec2.LaunchTemplate(
            self,
            "Template",
            instance_type=ec2.InstanceType(instance.type),
            machine_image=ecs.EcsOptimizedImage.amazon_linux2023(),
            security_group=placement.security_group,
            # Closed: CDK would add what the agent may need at most, with wildcards.
            role=role.without_policy_updates(),
            user_data=commands,
            http_tokens=ec2.LaunchTemplateHttpTokens.REQUIRED,
            http_put_response_hop_limit=1,
            require_imdsv2=True,
            detailed_monitoring=True,
            block_devices=[
                ec2.BlockDevice(
                    device_name="/dev/xvda",
                    volume=ec2.BlockDeviceVolume.ebs(
                        30, encrypted=True, volume_type=ec2.EbsDeviceVolumeType.GP3
                    ),
                )
            ],
        )
        self.group = autoscaling.AutoScalingGroup(
            self,
            "Group",
            vpc=placement.vpc,
            vpc_subnets=placement.subnets,
            launch_template=template,
            min_capacity=capacity.minimum,
            max_capacity=capacity.maximum,
            new_instances_protected_from_scale_in=True,
            group_metrics=[autoscaling.GroupMetrics.all()],
            update_policy=autoscaling.UpdatePolicy.rolling_update(min_instances_in_service=capacity.minimum)
            if capacity.minimum < capacity.maximum
            else None,
        )
        acknowledge(
            self.group,
            "AwsSolutions-AS3",
            "Scaling notices would be noise: ECS scales this group by the minute. The alarms watch what "
            "users feel instead (queue age, start latency).",
        )
        self.provider = ecs.AsgCapacityProvider(
            self,
            "Provider",
            capacity_provider_name=environment.named(name.lower()),
            auto_scaling_group=self.group,
            enable_managed_scaling=True,
            enable_managed_termination_protection=True,
            enable_managed_draining=True,
            target_capacity_percent=100,
            minimum_scaling_step_size=1,
            maximum_scaling_step_size=10,
            instance_warmup_period=60,
        )
        cluster.add_asg_capacity_provider(self.provider)
        cdk.Tags.of(self.group).add("Name", environment.named(name.lower()), apply_to_launched_instances=True)

    def _role(self, cluster: ecs.Cluster, environment: Environment) -> iam.Role:
        """What the ECS agent calls. Images and logs go through the execution roles of the tasks."""
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"))
        instances = cdk.Stack.of(self).format_arn(
            service="ecs", resource="container-instance", resource_name=f"{environment.named('muster')}/*"
        )
        allow(
            role,
            (
                "ecs:DeregisterContainerInstance",
                "ecs:RegisterContainerInstance",
                "ecs:SubmitAttachmentStateChanges",
                "ecs:SubmitContainerStateChange",
                "ecs:SubmitTaskStateChange",
            ),
            Scope([cluster.cluster_arn]),
        )
        allow(
            role,
            ("ecs:Poll", "ecs:StartTelemetrySession", "ecs:UpdateContainerInstancesState"),
            Scope([instances], {"ArnEquals": {"ecs:cluster": cluster.cluster_arn}}, RUNTIME_NAMES),
        )
        allow(
            role,
            ("ecs:DiscoverPollEndpoint",),
            Scope(["*"], because=UNSCOPED["ecs:DiscoverPollEndpoint"]),
        )
        return role
