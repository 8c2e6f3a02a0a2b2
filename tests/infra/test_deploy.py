"""The real CDK command line deploys queues and control plane; what was made is read back and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from muster import blueprint
from tests.infra.synthesis import Synth


def test_the_command_line_and_python_give_the_same_templates(
    deployment: tuple[Path, str], synths: dict[str, Synth]
) -> None:
    assert Synth("local", deployment[0]).templates == synths["local"].templates


@pytest.mark.parametrize("queue", blueprint.QUEUES, ids=lambda queue: queue.name)
def test_a_deployed_queue_is_the_one_of_the_blueprint(client: Any, queue: blueprint.Queue) -> None:
    sqs = client("sqs")
    url = sqs.get_queue_url(QueueName=f"local-{queue.name}")["QueueUrl"]
    read = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    assert int(read["VisibilityTimeout"]) == queue.visibility.total_seconds()
    assert int(read["MessageRetentionPeriod"]) == queue.retention.total_seconds()
    assert (read.get("FifoQueue") == "true") is queue.fifo
    assert read["SqsManagedSseEnabled"] == "true"
    if queue.dead_letter is None:
        assert "RedrivePolicy" not in read
    else:
        redrive = json.loads(read["RedrivePolicy"])
        assert redrive["deadLetterTargetArn"].endswith(f":local-{queue.dead_letter}")
        assert int(redrive["maxReceiveCount"]) == queue.max_receives


@pytest.mark.parametrize("function", blueprint.FUNCTIONS, ids=lambda function: function.name)
def test_a_deployed_function_is_the_one_of_the_blueprint(client: Any, function: blueprint.Function) -> None:
    read = client("lambda").get_function_configuration(FunctionName=f"local-{function.name}")
    assert read["Timeout"] == function.timeout.total_seconds()
    assert read["MemorySize"] == function.memory_mb
    assert read["Handler"] == f"lambdas.{function.name}.handler.handler"
    assert read["Architectures"] == ["arm64"]
    assert read["CodeSize"] < 15 * 2**20
    variables = read["Environment"]["Variables"]
    assert variables["MUSTER_QUEUE_WORKER_CONTROL"].endswith("/local-worker-control.fifo")


def test_deployed_event_sources_report_single_failures(client: Any) -> None:
    read = {
        mapping["EventSourceArn"].rsplit(":", 1)[1]: mapping
        for mapping in client("lambda").list_event_source_mappings()["EventSourceMappings"]
    }
    fed = [function for function in blueprint.FUNCTIONS if function.queue]
    assert set(read) == {f"local-{function.queue.name}" for function in fed if function.queue}
    for function in fed:
        assert function.queue is not None
        mapping = read[f"local-{function.queue.name}"]
        assert mapping["FunctionArn"].endswith(f":local-{function.name}")
        assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
        assert mapping["BatchSize"] == blueprint.BATCH_RECORDS
        assert mapping["ScalingConfig"]["MaximumConcurrency"] == function.concurrency


def test_deployed_rules_are_the_two_schedules_and_the_two_ecs_events(client: Any) -> None:
    events = client("events")
    read = {rule["Name"]: rule for rule in events.list_rules()["Rules"]}
    for function in blueprint.FUNCTIONS:
        if function.every is None:
            continue
        rule = read.pop(f"local-{function.name.replace('_', '-')}-schedule")
        minutes = int(function.every.total_seconds() // 60)
        assert rule["ScheduleExpression"] == f"rate({minutes} minute{'s' if minutes > 1 else ''})"
        (target,) = events.list_targets_by_rule(Rule=rule["Name"])["Targets"]
        assert target["Arn"].endswith(f":local-{function.name}")
    for wanted in blueprint.EVENT_RULES:
        rule = read.pop(f"local-{wanted.name}")
        pattern = json.loads(rule["EventPattern"])
        assert pattern["detail-type"] == [wanted.detail_type]
        assert pattern["detail"][wanted.status_field] == [wanted.status]
        (target,) = events.list_targets_by_rule(Rule=rule["Name"])["Targets"]
        assert target["Arn"].endswith(":local-maintenance_worker")
    assert read == {}
