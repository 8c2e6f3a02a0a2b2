"""The real CDK command line deploys queues and control plane; what was made is read back and compared."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import boto3
import pytest

from muster import blueprint
from tests.infra.synthesis import Synth, node_environment

ACCOUNT, REGION = "000000000000", "us-east-1"
DEPLOY_SECONDS = 240


@pytest.fixture(scope="module")
def deployment(
    cdk: Path, local_aws: str, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """`cdk bootstrap` and `cdk deploy` of the environment `local`: its assembly and the endpoint."""
    home = tmp_path_factory.mktemp("home")
    assembly = home / "cdk.out"
    environment = node_environment(home) | {
        "AWS_ENDPOINT_URL": local_aws,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": REGION,
        "PYTHONPATH": str(checkout),
        "NO_PROXY": "127.0.0.1,localhost",
    }

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [cdk, "--no-notices", "--ci", *arguments],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEPLOY_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"cdk {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"

    run("synth", "--quiet", "-c", "environment=local", "--output", str(assembly))
    run("bootstrap", "--app", str(assembly), f"aws://{ACCOUNT}/{REGION}")
    run("deploy", "--app", str(assembly), "--all", "--require-approval", "never")
    return assembly, local_aws


@pytest.fixture
def client(deployment: tuple[Path, str]) -> Any:
    def make(service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=deployment[1],
            region_name=REGION,
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )

    return make


pytestmark = pytest.mark.timeout(600)


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
