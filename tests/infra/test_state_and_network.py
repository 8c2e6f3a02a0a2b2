"""Valkey and the VPC: nothing is evicted, nothing is in the open, nothing is looked up."""

from __future__ import annotations

import pytest

from infra.permissions import VALKEY_ACCESS, Role
from tests.infra.synthesis import Synth


def test_prod_keeps_every_acknowledged_write(prod: Synth) -> None:
    cluster = prod.only("state", "AWS::MemoryDB::Cluster")
    assert cluster["TLSEnabled"] is True
    assert cluster["Engine"] == "valkey"
    assert cluster["NumReplicasPerShard"] == 2
    assert cluster["SnapshotRetentionLimit"] == 7
    assert prod.only("state", "AWS::MemoryDB::ParameterGroup")["Parameters"] == {
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-value": "128",
    }
    (resource,) = [
        r for r in prod.templates["state"]["Resources"].values() if r["Type"] == "AWS::MemoryDB::Cluster"
    ]
    assert resource["DeletionPolicy"] == "Retain"


def test_dev_fails_over_between_zones(dev: Synth) -> None:
    group = dev.only("state", "AWS::ElastiCache::ReplicationGroup")
    assert group["AutomaticFailoverEnabled"] is True
    assert group["MultiAZEnabled"] is True
    assert group["TransitEncryptionEnabled"] is True
    assert group["TransitEncryptionMode"] == "required"
    assert group["AtRestEncryptionEnabled"] is True
    assert group["SnapshotRetentionLimit"] == 1
    assert dev.only("state", "AWS::ElastiCache::ParameterGroup")["Properties"] == {
        "maxmemory-policy": "noeviction",
        "hash-max-listpack-value": "128",
    }


@pytest.mark.parametrize(
    ("environment", "kind"), [("prod", "AWS::MemoryDB::User"), ("dev", "AWS::ElastiCache::User")]
)
def test_each_role_has_a_user_of_its_own_without_a_password(
    synths: dict[str, Synth], environment: str, kind: str
) -> None:
    users = {p["UserName"]: p for p in synths[environment].resources("state", kind).values()}
    assert set(users) == {f"{environment}-{role.user}" for role in Role}
    for role in Role:
        user = users[f"{environment}-{role.user}"]
        assert user["AuthenticationMode"] == {"Type": "iam"}
        assert user["AccessString"] == VALKEY_ACCESS[role]


def test_only_functions_workers_and_api_reach_valkey(deployed: Synth) -> None:
    groups = deployed.resources("network", "AWS::EC2::SecurityGroup")
    (cache,) = [name for name, p in groups.items() if p["GroupDescription"] == "Valkey"]
    rules = [
        p
        for p in deployed.resources("network", "AWS::EC2::SecurityGroupIngress").values()
        if p["GroupId"]["Fn::GetAtt"][0] == cache
    ]
    assert {(p["FromPort"], p["ToPort"]) for p in rules} == {(6379, 6379)}
    sources = {groups[p["SourceSecurityGroupId"]["Fn::GetAtt"][0]]["GroupDescription"] for p in rules}
    assert sources == {
        "Lambda functions of the control plane",
        "Container instances of the workers",
        "Container instances of the API",
    }
    assert "SecurityGroupIngress" not in groups[cache]


def test_the_fleet_reaches_aws_without_the_internet_where_asked(prod: Synth, dev: Synth) -> None:
    def services(synth: Synth) -> set[str]:
        endpoints = synth.resources("network", "AWS::EC2::VPCEndpoint").values()
        return {
            str(p["ServiceName"]).rsplit(f"{'eu-west-1'}.", 1)[-1]
            for p in endpoints
            if p["VpcEndpointType"] == "Interface"
        }

    assert services(prod) == {
        "sqs",
        "ecs",
        "ecs-agent",
        "ecs-telemetry",
        "secretsmanager",
        "logs",
        "ecr.api",
        "ecr.dkr",
        "lambda",
        "scheduler",
    }
    assert services(dev) == set()
    assert len(dev.resources("network", "AWS::EC2::NatGateway")) == 1
    assert len(prod.resources("network", "AWS::EC2::NatGateway")) == 3


def test_traffic_is_logged_and_zones_are_as_many_as_asked(prod: Synth, dev: Synth) -> None:
    for synth, zones in ((prod, 3), (dev, 2)):
        assert len(synth.resources("network", "AWS::EC2::FlowLog")) == 1
        assert len(synth.resources("network", "AWS::EC2::Subnet")) == 2 * zones
