"""The queue and dead-letter tables: blueprint and templates say the same."""

from __future__ import annotations

import json

import pytest

from muster import blueprint
from tests.infra.synthesis import Synth

QUEUE = "AWS::SQS::Queue"


def logical_id(synth: Synth, queue: str) -> str:
    wanted = f"{synth.environment}-{queue}"
    (name,) = [k for k, p in synth.resources("queues", QUEUE).items() if p["QueueName"] == wanted]
    return name


def test_there_are_exactly_the_queues_of_the_blueprint(deployed: Synth) -> None:
    names = {p["QueueName"] for p in deployed.resources("queues", QUEUE).values()}
    assert names == {f"{deployed.environment}-{queue.name}" for queue in blueprint.QUEUES}


@pytest.mark.parametrize("queue", blueprint.QUEUES, ids=lambda queue: queue.name)
def test_a_queue_has_its_row_of_the_table(deployed: Synth, queue: blueprint.Queue) -> None:
    made = deployed.named("queues", QUEUE, "QueueName", queue.name)
    assert made["VisibilityTimeout"] == queue.visibility.total_seconds()
    assert made["MessageRetentionPeriod"] == queue.retention.total_seconds()
    assert made.get("FifoQueue", False) is queue.fifo
    if queue.dead_letter is None:
        assert "RedrivePolicy" not in made
    else:
        redrive = made["RedrivePolicy"]
        assert redrive["maxReceiveCount"] == queue.max_receives
        assert redrive["deadLetterTargetArn"]["Fn::GetAtt"][0] == logical_id(deployed, queue.dead_letter)


@pytest.mark.parametrize("queue", blueprint.QUEUES, ids=lambda queue: queue.name)
def test_a_queue_is_encrypted_and_refuses_plain_connections(deployed: Synth, queue: blueprint.Queue) -> None:
    assert deployed.named("queues", QUEUE, "QueueName", queue.name)["SqsManagedSseEnabled"] is True
    policies = deployed.resources("queues", "AWS::SQS::QueuePolicy").values()
    (policy,) = [p for p in policies if p["Queues"] == [{"Ref": logical_id(deployed, queue.name)}]]
    denials = [s for s in policy["PolicyDocument"]["Statement"] if s["Effect"] == "Deny"]
    assert any(s["Condition"] == {"Bool": {"aws:SecureTransport": "false"}} for s in denials)


def test_a_busy_group_does_not_slow_the_others(prod: Synth) -> None:
    for queue in blueprint.QUEUES:
        made = prod.named("queues", QUEUE, "QueueName", queue.name)
        scope = "messageGroup" if queue.fifo else None
        assert made.get("DeduplicationScope") == scope
        assert made.get("FifoThroughputLimit") == ("perMessageGroupId" if queue.fifo else None)


def test_only_the_queue_that_schedules_send_to_deduplicates_by_content(prod: Synth) -> None:
    """By content, start, stop, start with equal bodies would lose the third."""
    by_content = {
        p["QueueName"] for p in prod.resources("queues", QUEUE).values() if p.get("ContentBasedDeduplication")
    }
    assert by_content == {f"prod-{queue.name}" for queue in blueprint.QUEUES if queue.content_deduplication}
    assert by_content == {f"prod-{blueprint.ORDER_TASKS.name}"}


@pytest.mark.parametrize(
    ("alarm", "queue"),
    [
        (blueprint.Alarm.ORCHESTRATOR_DLQ, blueprint.WORKER_CONTROL_DLQ),
        (blueprint.Alarm.ORDER_TASKS_DLQ, blueprint.ORDER_TASKS_DLQ),
    ],
    ids=["worker-control", "order-tasks"],
)
def test_a_dead_letter_queue_keeps_14_days_alarms_and_is_on_the_dashboard(
    deployed: Synth, alarm: blueprint.Alarm, queue: blueprint.Queue
) -> None:
    made = deployed.named("queues", QUEUE, "QueueName", queue.name)
    assert made["MessageRetentionPeriod"] == 14 * 24 * 3600
    name = alarm.removeprefix("{env}-")
    watched = deployed.named("observability", "AWS::CloudWatch::Alarm", "AlarmName", name)
    assert watched["MetricName"] == "ApproximateNumberOfMessagesVisible"
    assert logical_id(deployed, queue.name) in json.dumps(watched["Dimensions"])
    assert (watched["Threshold"], watched["ComparisonOperator"]) == (0, "GreaterThanThreshold")
    topic = deployed.only("observability", "AWS::SNS::Topic")
    assert topic["TopicName"] == f"{deployed.environment}-{blueprint.ALERTS_TOPIC}"
    (topic_id,) = deployed.resources("observability", "AWS::SNS::Topic")
    assert watched["AlarmActions"] == [{"Ref": topic_id}]
    dashboard = deployed.only("observability", "AWS::CloudWatch::Dashboard")
    assert logical_id(deployed, queue.name) in json.dumps(dashboard["DashboardBody"])


def test_both_dead_letter_counts_are_side_by_side(prod: Synth) -> None:
    body = prod.only("observability", "AWS::CloudWatch::Dashboard")["DashboardBody"]["Fn::Join"][1]
    text = "".join(part if isinstance(part, str) else "TOKEN" for part in body)
    left, right = json.loads(text)["widgets"][:2]
    assert left["y"] == right["y"] == 0
    assert (left["x"], right["x"]) == (0, 12)
    assert [left["properties"]["title"], right["properties"]["title"]] == [
        "worker-control-dlq",
        "order-tasks-dlq",
    ]


def test_alerts_go_to_the_address_of_the_environment(prod: Synth, dev: Synth) -> None:
    subscription = prod.only("observability", "AWS::SNS::Subscription")
    assert (subscription["Protocol"], subscription["Endpoint"]) == ("email", "orchestrator@example.com")
    assert dev.resources("observability", "AWS::SNS::Subscription") == {}
