"""The VPC: zones, ways out, private addresses of the AWS services, and who may talk to whom."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from constructs import Construct

from infra.acknowledge import acknowledge
from infra.config import Environment
from infra.handles import Placement
from infra.logs import log_group

VALKEY_PORT = 6379

#: Ports Docker gives to bridge tasks (the ephemeral range of the ECS-optimised image).
DYNAMIC_PORTS = (32768, 60999)

ENDPOINTS = {
    "Sqs": ec2.InterfaceVpcEndpointAwsService.SQS,
    "Ecs": ec2.InterfaceVpcEndpointAwsService.ECS,
    "EcsAgent": ec2.InterfaceVpcEndpointAwsService.ECS_AGENT,
    "EcsTelemetry": ec2.InterfaceVpcEndpointAwsService.ECS_TELEMETRY,
    "SecretsManager": ec2.InterfaceVpcEndpointAwsService.SECRETS_MANAGER,
    "Logs": ec2.InterfaceVpcEndpointAwsService.CLOUDWATCH_LOGS,
    "Ecr": ec2.InterfaceVpcEndpointAwsService.ECR,
    "EcrDocker": ec2.InterfaceVpcEndpointAwsService.ECR_DOCKER,
    "Lambda": ec2.InterfaceVpcEndpointAwsService.LAMBDA_,
    "Scheduler": ec2.InterfaceVpcEndpointAwsService("scheduler"),
}


class NetworkStack(cdk.Stack):
    """Security groups live here and not beside their users, so that no two stacks need each other."""

    def __init__(self, scope: Construct, name: str, *, environment: Environment, **options: Any) -> None:
        super().__init__(scope, name, **options)
        private = (
            ec2.SubnetType.PRIVATE_WITH_EGRESS
            if environment.nat_gateways
            else ec2.SubnetType.PRIVATE_ISOLATED
        )
        self.vpc = ec2.Vpc(
            self,
            "Vpc",
            ip_addresses=ec2.IpAddresses.cidr("10.20.0.0/16"),
            # Chosen at deployment, so that synthesis needs no lookup.
            availability_zones=[
                cdk.Fn.select(zone, cdk.Fn.get_azs()) for zone in range(environment.availability_zones)
            ],
            nat_gateways=environment.nat_gateways,
            # Nothing uses the default group; emptying it would cost a custom resource with its own function.
            restrict_default_security_group=False,
            subnet_configuration=[
                ec2.SubnetConfiguration(name="public", subnet_type=ec2.SubnetType.PUBLIC, cidr_mask=24),
                ec2.SubnetConfiguration(name="private", subnet_type=private, cidr_mask=20),
            ],
        )
        self.private = ec2.SubnetSelection(subnet_type=private)
        self._flow_logs(environment)

        self.functions_group = self._group("Functions", "Lambda functions of the control plane")
        self.workers_group = self._group("Workers", "Container instances of the workers")
        self.api_group = self._group("Api", "Container instances of the API")
        self.balancer_group = self._group("Balancer", "The load balancer", outbound=False)
        self.cache_group = self._group("Cache", "Valkey", outbound=False)

        for client in (self.functions_group, self.workers_group, self.api_group):
            self.cache_group.add_ingress_rule(client, ec2.Port.tcp(VALKEY_PORT), "Valkey over TLS")
        public_port = 443 if environment.certificate_arn else 80
        self.balancer_group.add_ingress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(public_port), "Callers")
        if environment.certificate_arn:
            self.balancer_group.add_ingress_rule(
                ec2.Peer.any_ipv4(), ec2.Port.tcp(80), "Callers to be sent to HTTPS"
            )
        acknowledge(
            self.balancer_group,
            "AwsSolutions-EC23",
            "This is the public door of the API: anyone may knock on it.",
        )
        dynamic = ec2.Port.tcp_range(*DYNAMIC_PORTS)
        self.api_group.add_ingress_rule(self.balancer_group, dynamic, "Dynamic ports of bridge tasks")
        self.balancer_group.add_egress_rule(self.api_group, dynamic, "Dynamic ports of bridge tasks")

        self._endpoints(environment)

    @property
    def functions(self) -> Placement:
        return Placement(self.vpc, self.private, self.functions_group)

    @property
    def workers(self) -> Placement:
        return Placement(self.vpc, self.private, self.workers_group)

    @property
    def api(self) -> Placement:
        return Placement(self.vpc, self.private, self.api_group)

    def _group(self, name: str, description: str, *, outbound: bool = True) -> ec2.SecurityGroup:
        return ec2.SecurityGroup(
            self, name, vpc=self.vpc, description=description, allow_all_outbound=outbound
        )

    def _flow_logs(self, environment: Environment) -> None:
        group = log_group(self, "FlowLogs", environment, "flow-logs")
        role = iam.Role(self, "FlowLogsRole", assumed_by=iam.ServicePrincipal("vpc-flow-logs.amazonaws.com"))
        self.vpc.add_flow_log("FlowLog", destination=ec2.FlowLogDestination.to_cloud_watch_logs(group, role))

    def _endpoints(self, environment: Environment) -> None:
        # Free, and image layers come through it.
        self.vpc.add_gateway_endpoint("S3", service=ec2.GatewayVpcEndpointAwsService.S3)
        if not environment.interface_endpoints:
            return
        group = self._group("Endpoints", "Private addresses of AWS services", outbound=False)
        for client in (self.functions_group, self.workers_group, self.api_group):
            group.add_ingress_rule(client, ec2.Port.tcp(443), "AWS calls")
        for name, service in ENDPOINTS.items():
            self.vpc.add_interface_endpoint(
                name, service=service, subnets=self.private, security_groups=[group], open=False
            )
