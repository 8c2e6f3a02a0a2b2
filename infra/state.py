"""Valkey, node-based: every mark, epoch and wish lives here, so nothing may be evicted and little lost."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_elasticache as elasticache
from aws_cdk import aws_memorydb as memorydb
from constructs import Construct

from infra.acknowledge import acknowledge
from infra.config import Environment, Flavour
from infra.handles import Cache
from infra.network import VALKEY_PORT, NetworkStack
from infra.permissions import VALKEY_ACCESS, Role
from muster.blueprint import VALKEY_COMPACT_BYTES

#: Serverless caches evict keys with a TTL first, and the marks are the keys with a TTL: hence nodes.
PARAMETERS = {
    "maxmemory-policy": "noeviction",
    "hash-max-listpack-value": str(VALKEY_COMPACT_BYTES),
}
BACKUP_WINDOW = "03:00-04:00"
MAINTENANCE_WINDOW = "sun:04:30-sun:05:30"


class StateStack(cdk.Stack):
    def __init__(
        self, scope: Construct, name: str, *, environment: Environment, network: NetworkStack, **options: Any
    ) -> None:
        super().__init__(scope, name, **options)
        self._environment = environment
        self._network = network
        self._subnets = network.vpc.select_subnets(subnet_type=network.private.subnet_type).subnet_ids
        self.name = environment.named("muster")
        self.users = {role: environment.named(role.user) for role in Role}
        build = self._memorydb if environment.valkey is Flavour.MEMORYDB else self._elasticache
        self.cache = build()

    def _memorydb(self) -> Cache:
        """Writes are in a multi-zone log before they are acknowledged: a failover loses none of them."""
        environment = self._environment
        users = [
            memorydb.CfnUser(
                self,
                f"User{role.user.title().replace('-', '')}",
                user_name=self.users[role],
                access_string=access,
                authentication_mode={"Type": "iam"},
            )
            for role, access in VALKEY_ACCESS.items()
        ]
        acl = memorydb.CfnACL(self, "Acl", acl_name=self.name, user_names=[user.user_name for user in users])
        for user in users:
            acl.add_resource_dependency(user)
        parameters = memorydb.CfnParameterGroup(
            self,
            "Parameters",
            parameter_group_name=self.name,
            family="memorydb_valkey7",
            parameters=PARAMETERS,
        )
        subnets = memorydb.CfnSubnetGroup(
            self, "Subnets", subnet_group_name=self.name, subnet_ids=self._subnets
        )
        cluster = memorydb.CfnCluster(
            self,
            "Cluster",
            cluster_name=self.name,
            engine="valkey",
            engine_version="7.3",
            node_type=environment.valkey_node,
            num_shards=1,
            num_replicas_per_shard=environment.valkey_replicas,
            acl_name=acl.ref,
            parameter_group_name=parameters.ref,
            subnet_group_name=subnets.ref,
            security_group_ids=[self._network.cache_group.security_group_id],
            tls_enabled=True,
            port=VALKEY_PORT,
            snapshot_retention_limit=environment.backup_days,
            snapshot_window=BACKUP_WINDOW,
            maintenance_window=MAINTENANCE_WINDOW,
            auto_minor_version_upgrade=True,
        )
        self._keep_if_protected(cluster)
        return Cache(
            flavour=Flavour.MEMORYDB.value,
            name=self.name,
            url=f"rediss://{cluster.attr_cluster_endpoint_address}:{VALKEY_PORT}",
            cluster_mode=True,
            nodes=[f"{self.name}-0001-{number:03}" for number in self._node_numbers()],
            users=self.users,
            connect={
                role: [
                    self.format_arn(service="memorydb", resource="cluster", resource_name=self.name),
                    self.format_arn(service="memorydb", resource="user", resource_name=user),
                ]
                for role, user in self.users.items()
            },
        )

    def _elasticache(self) -> Cache:
        """Replication is asynchronous: after a failover two workers may overlap for at most one beat."""
        environment = self._environment
        users = [
            elasticache.CfnUser(
                self,
                f"User{role.user.title().replace('-', '')}",
                engine="valkey",
                # IAM authentication wants both to be equal.
                user_id=self.users[role],
                user_name=self.users[role],
                access_string=access,
                authentication_mode={"Type": "iam"},
            )
            for role, access in VALKEY_ACCESS.items()
        ]
        group = elasticache.CfnUserGroup(
            self,
            "Users",
            engine="valkey",
            user_group_id=self.name,
            user_ids=[user.user_id for user in users],
        )
        for user in users:
            group.add_resource_dependency(user)
        parameters = elasticache.CfnParameterGroup(
            self,
            "Parameters",
            cache_parameter_group_family="valkey8",
            description="Nothing may be evicted",
            properties=PARAMETERS,
        )
        subnets = elasticache.CfnSubnetGroup(
            self,
            "Subnets",
            cache_subnet_group_name=self.name,
            description="Private subnets",
            subnet_ids=self._subnets,
        )
        replication = elasticache.CfnReplicationGroup(
            self,
            "Group",
            replication_group_id=self.name,
            replication_group_description="Marks, epochs and wishes of the workers",
            engine="valkey",
            engine_version="8.1",
            cache_node_type=environment.valkey_node,
            num_node_groups=1,
            replicas_per_node_group=environment.valkey_replicas,
            automatic_failover_enabled=True,
            multi_az_enabled=True,
            transit_encryption_enabled=True,
            transit_encryption_mode="required",
            at_rest_encryption_enabled=True,
            user_group_ids=[group.ref],
            cache_parameter_group_name=parameters.ref,
            cache_subnet_group_name=subnets.ref,
            security_group_ids=[self._network.cache_group.security_group_id],
            port=VALKEY_PORT,
            snapshot_retention_limit=environment.backup_days,
            snapshot_window=BACKUP_WINDOW,
            preferred_maintenance_window=MAINTENANCE_WINDOW,
            auto_minor_version_upgrade=True,
        )
        self._keep_if_protected(replication)
        acknowledge(
            replication,
            "AwsSolutions-AEC5",
            "The port is reachable from three security groups only; another number would hide nothing.",
        )
        acknowledge(
            replication,
            "AwsSolutions-AEC6",
            "The rule looks for a password. Every user here signs in with IAM, which is stronger.",
        )
        return Cache(
            flavour=Flavour.ELASTICACHE.value,
            name=self.name,
            url=f"rediss://{replication.attr_primary_end_point_address}:{VALKEY_PORT}",
            cluster_mode=False,
            nodes=[f"{self.name}-{number:03}" for number in self._node_numbers()],
            users=self.users,
            connect={
                role: [
                    self._elasticache_arn("replicationgroup", self.name),
                    self._elasticache_arn("user", user),
                ]
                for role, user in self.users.items()
            },
        )

    def _node_numbers(self) -> range:
        return range(1, self._environment.valkey_replicas + 2)

    def _elasticache_arn(self, resource: str, name: str) -> str:
        return self.format_arn(
            service="elasticache",
            resource=resource,
            resource_name=name,
            arn_format=cdk.ArnFormat.COLON_RESOURCE_NAME,
        )

    def _keep_if_protected(self, resource: cdk.CfnResource) -> None:
        keep = cdk.RemovalPolicy.SNAPSHOT if self._environment.protect else cdk.RemovalPolicy.DESTROY
        # MemoryDB has no snapshot on deletion in CloudFormation: there the cluster itself stays.
        if self._environment.protect and self._environment.valkey is Flavour.MEMORYDB:
            keep = cdk.RemovalPolicy.RETAIN
        resource.apply_removal_policy(keep)
