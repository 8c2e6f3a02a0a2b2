"""The function table, its triggers and its schedules: blueprint and templates say the same."""

from __future__ import annotations

import json

import pytest

from muster import blueprint
from tests.infra.synthesis import Synth

FUNCTION = "AWS::Lambda::Function"
STACK = "control-plane"
RATES = {60: "rate(1 minute)", 300: "rate(5 minutes)"}


def function_id(synth: Synth, name: str) -> str:
    wanted = f"{synth.environment}-{name}"
    (found,) = [k for k, p in synth.resources(STACK, FUNCTION).items() if p["FunctionName"] == wanted]
    return found


def test_there_are_exactly_the_five_functions(deployed: Synth) -> None:
    names = {p["FunctionName"] for p in deployed.resources(STACK, FUNCTION).values()}
    assert names == {f"{deployed.environment}-{function.name}" for function in blueprint.FUNCTIONS}


@pytest.mark.parametrize("function", blueprint.FUNCTIONS, ids=lambda function: function.name)
def test_a_function_has_its_row_of_the_table(deployed: Synth, function: blueprint.Function) -> None:
    made = deployed.named(STACK, FUNCTION, "FunctionName", function.name)
    assert made["Timeout"] == function.timeout.total_seconds()
    assert made["MemorySize"] == function.memory_mb
    assert made.get("ReservedConcurrentExecutions") == function.concurrency
    assert made["Handler"] == f"lambdas.{function.name}.handler.handler"
    assert made["Architectures"] == ["arm64"]
    assert made["Runtime"] == "python3.14"
    assert made["LoggingConfig"]["LogFormat"] == "JSON"
    assert made["VpcConfig"]["SubnetIds"]
    assert made["VpcConfig"]["SecurityGroupIds"]


@pytest.mark.parametrize("function", blueprint.FUNCTIONS, ids=lambda function: function.name)
def test_a_function_writes_to_a_log_group_that_forgets(deployed: Synth, function: blueprint.Function) -> None:
    made = deployed.named(STACK, FUNCTION, "FunctionName", function.name)
    group = deployed.resources(STACK, "AWS::Logs::LogGroup")[made["LoggingConfig"]["LogGroup"]["Ref"]]
    assert group["LogGroupName"] == f"/muster/{deployed.environment}/{function.name}"
    assert group["RetentionInDays"] > 0


@pytest.mark.parametrize("function", blueprint.FUNCTIONS, ids=lambda function: function.name)
def test_a_function_is_triggered_by_its_queue_and_nothing_else_reads_it(
    deployed: Synth, function: blueprint.Function
) -> None:
    reference = {"Ref": function_id(deployed, function.name)}
    sources = [
        p
        for p in deployed.resources(STACK, "AWS::Lambda::EventSourceMapping").values()
        if p["FunctionName"] == reference
    ]
    if function.queue is None:
        assert sources == []
        return
    (source,) = sources
    queue = function.queue.name.removesuffix(".fifo").title().replace("-", "")
    assert queue in json.dumps(source["EventSourceArn"])
    assert source["BatchSize"] == blueprint.BATCH_RECORDS
    assert source["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    concurrency = source["ScalingConfig"]["MaximumConcurrency"]
    assert function.concurrency is not None
    assert function.max_concurrency is not None
    assert function.concurrency <= concurrency <= function.max_concurrency
    made = deployed.named(STACK, FUNCTION, "FunctionName", function.name)
    assert made["ReservedConcurrentExecutions"] >= concurrency


@pytest.mark.parametrize(
    "function", [f for f in blueprint.FUNCTIONS if f.every], ids=lambda function: function.name
)
def test_a_scheduled_function_runs_as_often_as_the_table_says(
    deployed: Synth, function: blueprint.Function
) -> None:
    name = f"{function.name.replace('_', '-')}-schedule"
    rule = deployed.named(STACK, "AWS::Events::Rule", "Name", name)
    assert function.every is not None
    assert rule["ScheduleExpression"] == RATES[int(function.every.total_seconds())]
    (target,) = rule["Targets"]
    assert target["Arn"]["Fn::GetAtt"][0] == function_id(deployed, function.name)


def test_a_late_sweep_is_dropped_not_queued(deployed: Synth) -> None:
    config = deployed.only(STACK, "AWS::Lambda::EventInvokeConfig")
    assert config["FunctionName"] == {"Ref": function_id(deployed, "maintenance")}
    assert config["MaximumEventAgeInSeconds"] == blueprint.MAINTENANCE_EVENT_AGE.total_seconds()
    assert config["MaximumRetryAttempts"] == blueprint.MAINTENANCE_RETRIES
    rule = deployed.named(STACK, "AWS::Events::Rule", "Name", "maintenance-schedule")
    assert rule["Targets"][0]["RetryPolicy"] == {
        "MaximumEventAgeInSeconds": blueprint.MAINTENANCE_EVENT_AGE.total_seconds(),
        "MaximumRetryAttempts": blueprint.MAINTENANCE_RETRIES,
    }


@pytest.mark.parametrize("rule", blueprint.EVENT_RULES, ids=lambda rule: rule.name)
def test_an_ecs_event_of_our_cluster_wakes_maintenance_worker(
    deployed: Synth, rule: blueprint.EventRule
) -> None:
    made = deployed.named(STACK, "AWS::Events::Rule", "Name", rule.name)
    pattern = made["EventPattern"]
    assert pattern["source"] == ["aws.ecs"]
    assert pattern["detail-type"] == [rule.detail_type]
    assert pattern["detail"][rule.status_field] == [rule.status]
    assert "ImportValue" in json.dumps(pattern["detail"]["clusterArn"])
    (target,) = made["Targets"]
    assert target["Arn"]["Fn::GetAtt"][0] == function_id(deployed, "maintenance_worker")


def test_nothing_but_schedules_and_ecs_events_has_a_rule(deployed: Synth) -> None:
    names = {p["Name"] for p in deployed.resources(STACK, "AWS::Events::Rule").values()}
    expected = {rule.name for rule in blueprint.EVENT_RULES}
    expected |= {f"{f.name.replace('_', '-')}-schedule" for f in blueprint.FUNCTIONS if f.every}
    assert names == {f"{deployed.environment}-{name}" for name in expected}


def test_the_local_environment_has_no_vpc_and_no_cluster(synths: dict[str, Synth]) -> None:
    local = synths["local"]
    assert set(local.templates) == {"queues", "control-plane"}
    for function in local.resources(STACK, FUNCTION).values():
        assert "VpcConfig" not in function
