"""The tables of API service, scaling, workers and networking: blueprint and templates say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster import blueprint
from tests.infra.synthesis import Synth

API = blueprint.API
WORKERS = blueprint.WORKERS
TASK = "AWS::ECS::TaskDefinition"


def container(task: dict[str, Any]) -> dict[str, Any]:
    (only,) = task["ContainerDefinitions"]
    return only


def api_task(synth: Synth) -> dict[str, Any]:
    return synth.named("api", TASK, "Family", "api")


def worker_task(synth: Synth) -> dict[str, Any]:
    return synth.named("cluster", TASK, "Family", "worker")


def hosts(synth: Synth, name: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Capacity provider, Auto Scaling group and launch template of one kind of host."""
    provider = synth.named("cluster", "AWS::ECS::CapacityProvider", "Name", name)
    group_id = provider["AutoScalingGroupProvider"]["AutoScalingGroupArn"]["Ref"]
    group = synth.resources("cluster", "AWS::AutoScaling::AutoScalingGroup")[group_id]
    template_id = group["LaunchTemplate"]["LaunchTemplateId"]["Ref"]
    template = synth.resources("cluster", "AWS::EC2::LaunchTemplate")[template_id]
    return provider["AutoScalingGroupProvider"], group, template["LaunchTemplateData"]


def test_the_api_task_has_the_sizes_of_the_table(deployed: Synth) -> None:
    made = container(api_task(deployed))
    assert made["Cpu"] == API.task.cpu_units
    assert made["MemoryReservation"] == API.task.soft_memory_mb
    assert made["Memory"] == API.task.hard_memory_mb
    assert API.instance.cpu_units // API.task.cpu_units == API.tasks_per_instance
    command = made["Command"]
    assert command[:2] == ["gunicorn", "api.main:app"]
    assert command[command.index("--workers") + 1] == str(API.uvicorn_workers)
    assert "uvicorn.workers.UvicornWorker" in command


def test_the_api_uses_bridge_mode_with_a_port_docker_chooses(deployed: Synth) -> None:
    assert api_task(deployed)["NetworkMode"] == API.network_mode
    (port,) = container(api_task(deployed))["PortMappings"]
    assert (port["ContainerPort"], port["HostPort"]) == (API.port, 0)
    targets = deployed.only("api", "AWS::ElasticLoadBalancingV2::TargetGroup")
    assert targets["HealthCheckPort"] == "traffic-port"
    assert targets["TargetType"] == "instance"


def test_the_api_rolls_without_downtime_and_rolls_back(deployed: Synth) -> None:
    service = deployed.only("api", "AWS::ECS::Service")
    deployment = service["DeploymentConfiguration"]
    assert deployment["MinimumHealthyPercent"] == API.min_healthy_percent
    assert deployment["MaximumPercent"] == API.max_percent
    assert deployment["DeploymentCircuitBreaker"] == {"Enable": True, "Rollback": True}
    attributes = {
        a["Key"]: a["Value"]
        for a in deployed.only("api", "AWS::ElasticLoadBalancingV2::TargetGroup")["TargetGroupAttributes"]
    }
    delay = attributes["deregistration_delay.timeout_seconds"]
    assert delay == str(int(API.deregistration_delay.total_seconds()))


def test_the_api_scales_on_cpu_and_on_requests(deployed: Synth) -> None:
    targets = {
        p["TargetTrackingScalingPolicyConfiguration"]["PredefinedMetricSpecification"][
            "PredefinedMetricType"
        ]: p["TargetTrackingScalingPolicyConfiguration"]
        for p in deployed.resources("api", "AWS::ApplicationAutoScaling::ScalingPolicy").values()
    }
    assert {name: policy["TargetValue"] for name, policy in targets.items()} == {
        "ECSServiceAverageCPUUtilization": API.cpu_target_percent,
        "ALBRequestCountPerTarget": API.requests_per_target_per_minute,
    }
    for policy in targets.values():
        assert policy["ScaleOutCooldown"] == API.scale_out_cooldown.total_seconds()
        assert policy["ScaleInCooldown"] == API.scale_in_cooldown.total_seconds()


def test_the_api_runs_on_its_own_hosts(deployed: Synth) -> None:
    _, _, template = hosts(deployed, "api")
    assert template["InstanceType"] == API.instance.type
    service = deployed.only("api", "AWS::ECS::Service")
    (strategy,) = service["CapacityProviderStrategy"]
    assert "Api" in json.dumps(strategy["CapacityProvider"])
    assert service["DesiredCount"] % API.tasks_per_instance == 0


def test_the_api_may_ask_pool_manager_and_no_other_function(deployed: Synth) -> None:
    (function_id,) = (
        name
        for name, made in deployed.resources("control-plane", "AWS::Lambda::Function").items()
        if made["FunctionName"] == f"{deployed.environment}-pool_manager"
    )
    (resource,) = (
        statement["Resource"]
        for policy in deployed.resources("api", "AWS::IAM::Policy").values()
        for statement in policy["PolicyDocument"]["Statement"]
        if "lambda:InvokeFunction" in statement["Action"]
    )
    arn = deployed.templates["control-plane"]["Outputs"][export_id(resource)]["Value"]
    assert arn == {"Fn::GetAtt": [function_id, "Arn"]}
    variables = {one["Name"]: one["Value"] for one in container(api_task(deployed))["Environment"]}
    name = deployed.templates["control-plane"]["Outputs"][export_id(variables["MUSTER_FN_POOL_MANAGER"])]
    assert name["Value"] == {"Ref": function_id}


def export_id(imported: dict[str, str]) -> str:
    """The output behind an imported value: exports are named after their stack and it."""
    return imported["Fn::ImportValue"].partition(":")[2]


def test_a_worker_task_has_the_sizes_of_the_table(deployed: Synth) -> None:
    task = worker_task(deployed)
    made = container(task)
    assert made["Cpu"] == WORKERS.task.cpu_units
    assert made["MemoryReservation"] == WORKERS.task.soft_memory_mb
    assert made["Memory"] == WORKERS.task.hard_memory_mb
    assert made["StopTimeout"] == WORKERS.stop_timeout.total_seconds()
    assert task["NetworkMode"] == WORKERS.network_mode
    assert made["Command"] == ["python", "-m", "worker"]
    # Bridge, and nobody calls a worker: it has no port at all.
    assert "PortMappings" not in made


def test_thirty_workers_fit_on_a_host(deployed: Synth) -> None:
    made = container(worker_task(deployed))
    host = WORKERS.instance
    assert host.cpu_units // made["Cpu"] == 32
    assert host.memory_mb // made["MemoryReservation"] == 42
    assert host.memory_mb // made["Memory"] == 16
    free = host.memory_mb - WORKERS.host_overhead_mb
    places = min(host.cpu_units // made["Cpu"], free // made["MemoryReservation"])
    assert places >= WORKERS.tasks_per_instance
    _, _, template = hosts(deployed, "workers")
    assert f"ECS_RESERVED_MEMORY={WORKERS.host_overhead_mb}" in json.dumps(template["UserData"])


def test_nobody_but_the_control_plane_decides_how_many_workers_run(deployed: Synth) -> None:
    assert deployed.resources("cluster", "AWS::ECS::Service") == {}
    _, group, template = hosts(deployed, "workers")
    assert template["InstanceType"] == WORKERS.instance.type
    assert "DesiredCapacity" not in group


@pytest.mark.parametrize("family", ["worker", "job-worker"])
def test_a_worker_has_no_power_over_its_host(deployed: Synth, family: str) -> None:
    made = container(deployed.named("cluster", TASK, "Family", family))
    assert made["User"] == "10001:10001"
    assert made["ReadonlyRootFilesystem"] is True
    assert made["Privileged"] is False
    assert made["LinuxParameters"]["Capabilities"] == {"Drop": ["ALL"]}
    assert made["LinuxParameters"]["InitProcessEnabled"] is True
    assert made["DockerSecurityOptions"] == ["no-new-privileges"]


def test_a_job_worker_is_restarted_in_place_unless_it_was_done(deployed: Synth) -> None:
    made = container(deployed.named("cluster", TASK, "Family", "job-worker"))
    assert made["RestartPolicy"] == {"Enabled": True, "IgnoredExitCodes": [0], "RestartAttemptPeriod": 60}
    assert "RestartPolicy" not in container(worker_task(deployed))


def test_a_pool_can_be_pinned_to_an_earlier_revision_of_the_job_worker(deployed: Synth) -> None:
    """A deployment leaves it as it is, and pool_manager may run it."""
    family = f"{deployed.environment}-job-worker"
    resources = deployed.templates["cluster"]["Resources"].values()
    [kept] = [r for r in resources if r["Type"] == TASK and r["Properties"]["Family"] == family]
    assert kept["UpdateReplacePolicy"] == "Retain"
    allowed = json.dumps(deployed.templates["control-plane"])
    assert f":task-definition/{family}:*" in allowed


@pytest.mark.parametrize("name", ["api", "workers"])
def test_hosts_scale_with_their_tasks_and_keep_metadata_to_themselves(deployed: Synth, name: str) -> None:
    provider, group, template = hosts(deployed, name)
    assert provider["ManagedScaling"]["Status"] == "ENABLED"
    # Below 100 ECS keeps a spare host, and the group could never end.
    assert provider["ManagedScaling"]["TargetCapacity"] == 100
    assert provider["ManagedTerminationProtection"] == "ENABLED"
    assert group["NewInstancesProtectedFromScaleIn"] is True
    assert template["MetadataOptions"] == {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
    start = json.dumps(template["UserData"])
    assert "-I DOCKER-USER -i docker+ -d 169.254.169.254/32 -j DROP" in start
    assert template["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True


def test_the_worker_group_ends_where_no_user_runs(dev: Synth) -> None:
    _, group, _ = hosts(dev, "workers")
    assert group["MinSize"] == "0"
    assert dev.resources("control-plane", "AWS::Lambda::Function")
    for function in dev.resources("control-plane", "AWS::Lambda::Function").values():
        assert function["Environment"]["Variables"]["MUSTER_POOL_TARGET"] == "0"


def test_the_cluster_is_observed(deployed: Synth) -> None:
    (setting,) = deployed.only("cluster", "AWS::ECS::Cluster")["ClusterSettings"]
    assert setting == {"Name": "containerInsights", "Value": "enabled"}


def test_https_is_used_when_there_is_a_certificate(secure: Synth) -> None:
    listeners = secure.resources("api", "AWS::ElasticLoadBalancingV2::Listener").values()
    by_port = {listener["Port"]: listener for listener in listeners}
    assert by_port[443]["Protocol"] == "HTTPS"
    assert by_port[443]["DefaultActions"][0]["Type"] == "forward"
    assert by_port[80]["DefaultActions"][0]["RedirectConfig"]["Protocol"] == "HTTPS"
    record = secure.only("api", "AWS::Route53::RecordSet")
    assert (record["Name"], record["Type"]) == ("muster.example.com.", "A")


def test_without_nat_the_fleet_has_no_way_to_the_internet(secure: Synth) -> None:
    assert secure.resources("network", "AWS::EC2::NatGateway") == {}
    assert len(secure.resources("network", "AWS::EC2::VPCEndpoint")) == 11


def test_the_firewall_stands_where_it_is_asked_for(prod: Synth, dev: Synth) -> None:
    assert len(prod.resources("api", "AWS::WAFv2::WebACLAssociation")) == 1
    assert dev.resources("api", "AWS::WAFv2::WebACL") == {}
