"""The API: a load balancer in front of an ECS service on its own hosts."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_certificatemanager as acm
from aws_cdk import aws_ecs as ecs
from aws_cdk import aws_elasticloadbalancingv2 as elb
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_route53 as route53
from aws_cdk import aws_route53_targets as route53_targets
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_wafv2 as wafv2
from constructs import Construct

from infra.acknowledge import acknowledge, acknowledge_wildcard
from infra.cluster import UNPRIVILEGED, ClusterStack, image, linux
from infra.config import Environment
from infra.handles import Cache, Queues, Scope, grant, shared_variables
from infra.logs import log_group
from infra.network import NetworkStack
from infra.permissions import UNSCOPED, On, Role
from muster import blueprint

HEALTH_PATH = "/healthz"
GUNICORN = (
    "gunicorn",
    "api.main:app",
    "--worker-class",
    "uvicorn.workers.UvicornWorker",
    "--workers",
    str(blueprint.API.uvicorn_workers),
    "--bind",
    f"0.0.0.0:{blueprint.API.port}",
    "--worker-tmp-dir",
    "/dev/shm",
)


def _seconds(value: Any) -> cdk.Duration:
    return cdk.Duration.seconds(int(value.total_seconds()))


class ApiServiceStack(cdk.Stack):
    def __init__(
        self,
        scope: Construct,
        name: str,
        *,
        environment: Environment,
        network: NetworkStack,
        cluster: ClusterStack,
        queues: Queues,
        cache: Cache,
        pool_manager: lambda_.IFunction,
        **options: Any,
    ) -> None:
        super().__init__(scope, name, **options)
        self._environment = environment
        self.balancer = self._balancer(network)
        definition = self._task(queues, cache, cluster, pool_manager)
        self.service = self._service(cluster, definition)
        self.targets = self._listen(network)
        self._scale()
        if environment.waf:
            self._protect()
        if environment.domain and environment.hosted_zone_id:
            self._name(environment.domain, environment.hosted_zone_id)

    def _task(
        self, queues: Queues, cache: Cache, cluster: ClusterStack, pool_manager: lambda_.IFunction
    ) -> ecs.Ec2TaskDefinition:
        api = blueprint.API
        definition = ecs.Ec2TaskDefinition(
            self,
            "Task",
            family=self._environment.named("api"),
            network_mode=ecs.NetworkMode(api.network_mode.upper()),
            task_role=iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com")),
        )
        tokens = self._environment.tokens
        assert tokens is not None, "an environment with an API has an issuer; its config checks that"
        scopes = queues.scopes() | {On.POOL_MANAGER_FN: Scope([pool_manager.function_arn])}
        grant(definition.task_role, Role.API, scopes, cache)
        definition.add_container(
            "api",
            container_name="api",
            image=ecs.ContainerImage.from_docker_image_asset(image(self, "Image", "Dockerfile.api")),
            command=list(GUNICORN),
            cpu=api.task.cpu_units,
            memory_reservation_mib=api.task.soft_memory_mb,
            memory_limit_mib=api.task.hard_memory_mb,
            port_mappings=[ecs.PortMapping(container_port=api.port, host_port=0)],
            user=UNPRIVILEGED,
            privileged=False,
            readonly_root_filesystem=True,
            docker_security_options=["no-new-privileges"],
            linux_parameters=linux(self, "Linux"),
            stop_timeout=_seconds(blueprint.WORKERS.stop_timeout),
            environment=shared_variables(self._environment, cluster.fleet.version)
            | queues.variables()
            | cache.variables(Role.API)
            | tokens.variables()
            | {"MUSTER_FN_POOL_MANAGER": pool_manager.function_name},
            logging=ecs.LogDriver.aws_logs(
                stream_prefix="api", log_group=log_group(self, "Logs", self._environment, "api")
            ),
        )
        acknowledge(
            definition,
            "AwsSolutions-ECS2",
            "The variables are addresses and sizes; the API holds no secret, only its issuer's public keys.",
        )
        acknowledge_wildcard(definition.obtain_execution_role(), "*", UNSCOPED["ecr:GetAuthorizationToken"])
        return definition

    def _service(self, cluster: ClusterStack, definition: ecs.Ec2TaskDefinition) -> ecs.Ec2Service:
        api = blueprint.API
        return ecs.Ec2Service(
            self,
            "Service",
            service_name=self._environment.named("api"),
            cluster=cluster.cluster,
            task_definition=definition,
            desired_count=self._environment.api.minimum * api.tasks_per_instance,
            min_healthy_percent=api.min_healthy_percent,
            max_healthy_percent=api.max_percent,
            circuit_breaker=ecs.DeploymentCircuitBreaker(enable=True, rollback=True),
            capacity_provider_strategies=[
                ecs.CapacityProviderStrategy(
                    capacity_provider=cluster.api_hosts.provider.capacity_provider_name, weight=1
                )
            ],
            placement_strategies=[
                ecs.PlacementStrategy.spread_across(ecs.BuiltInAttributes.AVAILABILITY_ZONE),
                ecs.PlacementStrategy.packed_by_cpu(),
            ],
            health_check_grace_period=cdk.Duration.seconds(60),
            propagate_tags=ecs.PropagatedTagSource.SERVICE,
        )

    def _balancer(self, network: NetworkStack) -> elb.ApplicationLoadBalancer:
        logs = s3.Bucket(
            self,
            "AccessLogs",
            encryption=s3.BucketEncryption.S3_MANAGED,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            enforce_ssl=True,
            lifecycle_rules=[s3.LifecycleRule(expiration=cdk.Duration.days(self._environment.log_days))],
            removal_policy=cdk.RemovalPolicy.RETAIN,
        )
        acknowledge(
            logs, "AwsSolutions-S1", "This bucket holds the access logs; logging it too would never end."
        )
        balancer = elb.ApplicationLoadBalancer(
            self,
            "Balancer",
            load_balancer_name=self._environment.named("api"),
            vpc=network.vpc,
            internet_facing=True,
            security_group=network.balancer_group,
            drop_invalid_header_fields=True,
            deletion_protection=self._environment.protect,
        )
        balancer.log_access_logs(logs)
        return balancer

    def _listen(self, network: NetworkStack) -> elb.ApplicationTargetGroup:
        api = blueprint.API
        targets = elb.ApplicationTargetGroup(
            self,
            "Targets",
            vpc=network.vpc,
            port=api.port,
            protocol=elb.ApplicationProtocol.HTTP,
            target_type=elb.TargetType.INSTANCE,
            targets=[self.service.load_balancer_target(container_name="api", container_port=api.port)],
            deregistration_delay=_seconds(api.deregistration_delay),
            health_check=elb.HealthCheck(
                path=HEALTH_PATH,
                # Docker picks the port of a bridge task: only the target itself knows it.
                port="traffic-port",
                interval=cdk.Duration.seconds(10),
                timeout=cdk.Duration.seconds(5),
                healthy_threshold_count=2,
                unhealthy_threshold_count=3,
            ),
        )
        certificate = self._environment.certificate_arn
        if certificate is None:
            listener = self.balancer.add_listener(
                "Http", port=80, open=False, default_target_groups=[targets]
            )
            self.service.node.add_dependency(listener)
            return targets
        listener = self.balancer.add_listener(
            "Https",
            port=443,
            open=False,
            certificates=[acm.Certificate.from_certificate_arn(self, "Certificate", certificate)],
            ssl_policy=elb.SslPolicy.RECOMMENDED_TLS,
            default_target_groups=[targets],
        )
        self.balancer.add_listener(
            "ToHttps",
            port=80,
            open=False,
            default_action=elb.ListenerAction.redirect(port="443", protocol="HTTPS", permanent=True),
        )
        self.service.node.add_dependency(listener)
        return targets

    def _scale(self) -> None:
        api, hosts = blueprint.API, self._environment.api
        scaling = self.service.auto_scale_task_count(
            min_capacity=hosts.minimum * api.tasks_per_instance,
            max_capacity=hosts.maximum * api.tasks_per_instance,
        )
        cooldown: dict[str, Any] = {
            "scale_out_cooldown": _seconds(api.scale_out_cooldown),
            "scale_in_cooldown": _seconds(api.scale_in_cooldown),
        }
        scaling.scale_on_cpu_utilization("Cpu", target_utilization_percent=api.cpu_target_percent, **cooldown)
        scaling.scale_on_request_count(
            "Requests",
            requests_per_target=api.requests_per_target_per_minute,
            target_group=self.targets,
            **cooldown,
        )

    def _name(self, domain: str, hosted_zone_id: str) -> None:
        zone = route53.HostedZone.from_hosted_zone_attributes(
            self, "Zone", hosted_zone_id=hosted_zone_id, zone_name=domain.split(".", 1)[1]
        )
        route53.ARecord(
            self,
            "Name",
            zone=zone,
            record_name=domain,
            target=route53.RecordTarget.from_alias(route53_targets.LoadBalancerTarget(self.balancer)),
        )

    def _protect(self) -> None:
        def managed(name: str, priority: int) -> wafv2.CfnWebACL.RuleProperty:
            return wafv2.CfnWebACL.RuleProperty(
                name=name,
                priority=priority,
                override_action=wafv2.CfnWebACL.OverrideActionProperty(none={}),
                statement=wafv2.CfnWebACL.StatementProperty(
                    managed_rule_group_statement=wafv2.CfnWebACL.ManagedRuleGroupStatementProperty(
                        vendor_name="AWS", name=name
                    )
                ),
                visibility_config=seen(name),
            )

        def seen(name: str) -> wafv2.CfnWebACL.VisibilityConfigProperty:
            return wafv2.CfnWebACL.VisibilityConfigProperty(
                cloud_watch_metrics_enabled=True, metric_name=name, sampled_requests_enabled=True
            )

        acl = wafv2.CfnWebACL(
            self,
            "Firewall",
            name=self._environment.named("api"),
            scope="REGIONAL",
            default_action=wafv2.CfnWebACL.DefaultActionProperty(allow={}),
            visibility_config=seen(self._environment.named("api")),
            rules=[
                managed("AWSManagedRulesCommonRuleSet", 0),
                managed("AWSManagedRulesKnownBadInputsRuleSet", 1),
                managed("AWSManagedRulesAmazonIpReputationList", 2),
            ],
        )
        wafv2.CfnWebACLAssociation(
            self,
            "FirewallOnBalancer",
            resource_arn=self.balancer.load_balancer_arn,
            web_acl_arn=acl.attr_arn,
        )
