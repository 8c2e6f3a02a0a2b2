"""The handlers with Lambda's own events, on moto's queues: what is done, what is parked, what comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any

import boto3
import fakeredis
import pytest
from moto import mock_aws

from lambdas import wiring
from lambdas.maintenance.handler import handler as maintenance
from lambdas.maintenance_worker.handler import handler as maintenance_worker
from lambdas.pool_manager.handler import handler as pool_manager
from lambdas.worker_control.handler import handler as worker_control
from muster import steps
from muster.blueprint import QUEUES, WORKER_CONTROL, WORKER_CONTROL_DLQ
from muster.errors import BadCommand
from muster.launchers import fake
from muster.maintenance import Batch
from muster.model import Want
from muster.queues import SqsCommands
from muster.settings import Settings
from muster.store import Store
from tests.worlds import World, assignment, command, world

CONTEXT = SimpleNamespace(aws_request_id="run-1")


@dataclass
class Aws:
    """moto's queues, the handlers' wiring, and the core's world behind them."""

    sqs: Any
    urls: dict[str, str]
    w: World
    on_instance: list[str]

    def send(self, body: str, group: str = "u1") -> None:
        url = self.urls[WORKER_CONTROL.name]
        dedup = f"{time.monotonic_ns()}"
        self.sqs.send_message(
            QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=dedup
        )

    def event(self, *, most: int = 10) -> dict[str, Any]:
        """What Lambda would hand over: everything that can be received now."""
        got = self.sqs.receive_message(
            QueueUrl=self.urls[WORKER_CONTROL.name],
            MaxNumberOfMessages=most,
            AttributeNames=["All"],
        ).get("Messages", [])
        return {
            "Records": [
                {
                    "messageId": m["MessageId"],
                    "receiptHandle": m["ReceiptHandle"],
                    "body": m["Body"],
                    "attributes": m["Attributes"],
                    "messageAttributes": {},
                    "eventSource": "aws:sqs",
                    "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:worker-control.fifo",
                }
                for m in got
            ]
        }

    def parked(self) -> list[dict[str, Any]]:
        return list(
            self.sqs.receive_message(
                QueueUrl=self.urls[WORKER_CONTROL_DLQ.name],
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                AttributeNames=["All"],
            ).get("Messages", [])
        )


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Aws]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        sqs = boto3.client("sqs", region_name="us-east-1")
        urls = {}
        for queue in QUEUES:
            attributes = {"VisibilityTimeout": str(round(queue.visibility.total_seconds()))}
            if queue.fifo:
                attributes["FifoQueue"] = "true"
            urls[queue.name] = sqs.create_queue(QueueName=queue.name, Attributes=attributes)["QueueUrl"]
        w = world(Store(fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)))
        object.__setattr__(w.deps, "commands", SqsCommands(sqs, urls[WORKER_CONTROL.name]))
        settings = Settings(
            queue_worker_control=urls[WORKER_CONTROL.name],
            queue_worker_control_dlq=urls[WORKER_CONTROL_DLQ.name],
            pool_target=2,
            version="v1",
        )
        on_instance: list[str] = []

        def invoke(batches: Sequence[Batch]) -> None:
            for batch in batches:
                maintenance_worker(json.loads(json.dumps({"batch": asdict(batch)})), CONTEXT)

        orders: Any = None  # no fill check is made here
        wired = wiring.Wiring(settings, sqs, lambda _: w.deps, invoke, lambda _: on_instance, orders)
        monkeypatch.setattr(wiring, "_wiring", wired)
        yield Aws(sqs, urls, w, on_instance)


def failures(answer: dict[str, Any]) -> list[str]:
    return [item["itemIdentifier"] for item in answer["batchItemFailures"]]


def test_a_bare_message_sent_by_hand_starts_a_worker(aws: Aws) -> None:
    aws.send('{"action":"start","user_id":"u1"}')
    assert failures(worker_control(aws.event(), CONTEXT)) == []
    assert len(aws.w.launcher.living()) == 1


def test_one_bad_record_of_ten_is_parked_with_its_reason_and_nine_are_done(aws: Aws) -> None:
    for n in range(10):
        aws.send("{broken" if n == 4 else command("start", f"u{n}").body(), f"u{n}")
    event = aws.event()
    assert len(event["Records"]) == 10
    assert failures(worker_control(event, CONTEXT)) == []
    assert len(aws.w.launcher.living()) == 9
    (parked,) = aws.parked()
    assert parked["Body"] == "{broken"
    assert parked["MessageAttributes"]["reason"]["StringValue"].startswith("the body is not JSON")
    assert parked["MessageAttributes"]["source"]["StringValue"].endswith("worker-control.fifo")
    assert parked["Attributes"]["MessageGroupId"] == "u4"


@pytest.mark.parametrize(
    "body",
    [
        "[]",
        "null",
        "7",
        '"start"',
        "[" * 16_000,
        "x" * 20_000,
        '{"action":"start","user_id":"../../etc/passwd"}',
        '{"action":"start","user_id":"u\\u0000"}',
        '{"action":"start","user_id":"\\ud800"}',
        '{"action":"start","user_id":"ünïcødé"}',
        '{"action":"start","user_id":"u1","\\u0000\\u001b":1}',
        '{"action":"start","user_id":"u1","unknown":true}',
        '{"action":"start","user_id":"u1","issued_at":"2999-01-01T00:00:00Z"}',
        '{"action":"claim","user_id":"u1"}',
    ],
)
def test_what_can_never_work_is_parked_at_once_and_does_not_block_its_group(aws: Aws, body: str) -> None:
    aws.send(body)
    aws.send(command("start").body())
    assert failures(worker_control(aws.event(), CONTEXT)) == []
    (parked,) = aws.parked()
    reason = parked["MessageAttributes"]["reason"]["StringValue"]
    assert reason.isprintable()
    assert len(reason) > 5
    assert aws.w.user().want is Want.RUNNING


def test_a_refused_launch_is_parked_not_retried(aws: Aws) -> None:
    from muster.errors import Refused

    def refuse(_: Any) -> str:
        raise Refused("no such task definition")

    aws.w.launcher.run = refuse  # type: ignore[method-assign]
    aws.send(command("start").body())
    assert failures(worker_control(aws.event(), CONTEXT)) == []
    assert aws.parked()[0]["MessageAttributes"]["reason"]["StringValue"] == "no such task definition"


def test_only_the_failed_users_records_come_back_all_of_them_and_soon(aws: Aws) -> None:
    aws.w.launcher.plan(fake.throttled())
    for user in ("u1", "u2", "u1", "u3"):
        aws.send(command("start", user).body(), user)
    event = aws.event()
    mine = [r for r in event["Records"] if r["attributes"]["MessageGroupId"] == "u1"]
    changed: list[tuple[str, int]] = []
    real = aws.sqs.change_message_visibility_batch

    def spy(QueueUrl: str, Entries: list[dict[str, Any]]) -> Any:
        changed.extend((entry["ReceiptHandle"], entry["VisibilityTimeout"]) for entry in Entries)
        return real(QueueUrl=QueueUrl, Entries=Entries)

    aws.sqs.change_message_visibility_batch = spy
    answer = worker_control(event, CONTEXT)
    assert sorted(failures(answer)) == sorted(r["messageId"] for r in mine)
    assert sorted(changed) == sorted((r["receiptHandle"], 5) for r in mine)
    assert {launch.owner for launch in aws.w.launcher.living().values()} == {"u2", "u3"}
    again = {"Records": mine}
    assert failures(worker_control(again, CONTEXT)) == []
    assert len(aws.w.launcher.living()) == 3


def test_a_single_record_that_fails_also_comes_back_soon(aws: Aws) -> None:
    """A batch in which every record failed must be an answer, not an exception."""
    aws.w.launcher.plan(fake.throttled())
    aws.send(command("start").body())
    event = aws.event()
    assert failures(worker_control(event, CONTEXT)) == [event["Records"][0]["messageId"]]


def test_a_park_that_fails_brings_the_record_back(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.send("{broken", "u1")
    aws.send(command("start", "u2").body(), "u2")
    event = aws.event()
    aws.sqs.delete_queue(QueueUrl=aws.urls[WORKER_CONTROL_DLQ.name])
    bad = next(r["messageId"] for r in event["Records"] if r["body"] == "{broken")
    assert failures(worker_control(event, CONTEXT)) == [bad]
    assert len(aws.w.launcher.living()) == 1


def test_a_sweep_repairs_through_the_queue_and_worker_control(aws: Aws) -> None:
    aws.send(command("start").body())
    worker_control(aws.event(), CONTEXT)
    aws.sqs.purge_queue(QueueUrl=aws.urls[WORKER_CONTROL.name])
    (task_id,) = aws.w.launcher.living()
    aws.w.launcher.finish(task_id, 137)
    assert maintenance({}, CONTEXT)["users"] == 1
    event = aws.event()
    assert [json.loads(r["body"])["cause"] for r in event["Records"]] == ["repair"]
    assert failures(worker_control(event, CONTEXT)) == []
    assert len(aws.w.launcher.living()) == 1


def stopped_event(task_id: str, status: str = "STOPPED") -> dict[str, Any]:
    detail = {"taskArn": task_id, "lastStatus": status, "containers": [{"exitCode": 137}], "version": 7}
    return {"detail-type": "ECS Task State Change", "detail": detail}


def live_user(aws: Aws) -> str:
    aws.w.apply(command("start"))
    view = aws.w.user()
    begin = steps.Begin(view.epoch, 0, view.issued_at_ms, view.command_id, "")
    aws.w.store.one(steps.take_mark(assignment(begin), "w1", view.task_id, "v1"))
    return view.task_id


def test_a_stopped_event_sends_one_repair_however_often_it_comes(aws: Aws) -> None:
    task_id = live_user(aws)
    assert maintenance_worker(stopped_event(task_id, "RUNNING"), CONTEXT) == {"done": "not stopped"}
    assert maintenance_worker(stopped_event(task_id), CONTEXT) == {"done": "repair sent"}
    assert maintenance_worker(stopped_event(task_id), CONTEXT) == {"done": "not in use"}
    assert maintenance_worker(stopped_event("arn:somebody-elses"), CONTEXT) == {"done": "not in use"}
    (record,) = aws.event()["Records"]
    assert json.loads(record["body"])["reason"] == "exit code 137"


def test_a_draining_event_moves_the_users_of_that_instance(aws: Aws) -> None:
    aws.on_instance += [live_user(aws), "arn:an-api-task"]
    detail = {"containerInstanceArn": "arn:instance", "status": "DRAINING"}
    event = {"detail-type": "ECS Container Instance State Change", "detail": detail}
    assert maintenance_worker(event, CONTEXT) == {"done": "draining", "tasks": 2, "moved": 1}
    (record,) = aws.event()["Records"]
    assert json.loads(record["body"])["cause"] == "move"
    active = {"detail-type": event["detail-type"], "detail": detail | {"status": "ACTIVE"}}
    assert maintenance_worker(active, CONTEXT) == {"done": "not draining"}


def test_an_event_nobody_knows_fails_visibly(aws: Aws) -> None:
    with pytest.raises(BadCommand, match="neither a batch nor"):
        maintenance_worker({"detail-type": "something else", "detail": {}}, CONTEXT)


def test_the_pool_manager_fills_to_the_target(aws: Aws) -> None:
    assert pool_manager({}, CONTEXT) == {"target": 2, "idle": 0, "launched": 2, "retired": 0}
    assert pool_manager({}, SimpleNamespace(aws_request_id="run-2"))["launched"] == 0


def test_metrics_are_written_with_their_names_and_no_user_id(
    aws: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.send(command("start", "somebody").body())
    worker_control(aws.event(), CONTEXT)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]
    assert [line["PoolMiss"] for line in lines] == [[1.0]]
    assert "somebody" not in json.dumps(lines)
