"""The local AWS endpoint as a real process: queues of the blueprint, adoption, what a stop keeps."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from botocore.exceptions import ClientError

from local.endpoint import LocalAws, arn
from muster.blueprint import ORDER_TASKS, POOL_CLAIM, QUEUES, WORKER_CONTROL, WORKER_CONTROL_DLQ
from muster.errors import Refused

#: Starts an endpoint as an engine does, says its pid, and waits to be killed.
ENGINE = """
import sys
from pathlib import Path
from local.endpoint import LocalAws
aws = LocalAws(Path(sys.argv[1])).start()
urls = aws.ensure_queues()
aws.client("sqs").send_message(QueueUrl=urls["worker-control.fifo"], MessageBody="queued",
                               MessageGroupId="u1", MessageDeduplicationId="1")
print(aws.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder whose endpoint, if it still lives, ends with the test."""
    yield tmp_path
    record = tmp_path / "aws.json"
    if record.exists():
        pid = json.loads(record.read_text())["pid"]
        if psutil.pid_exists(pid):
            process = psutil.Process(pid)
            process.kill()
            process.wait(10)


def send(aws: LocalAws, body: str, dedup: str = "1") -> None:
    url = aws.ensure_queues()[WORKER_CONTROL.name]
    aws.client("sqs").send_message(
        QueueUrl=url, MessageBody=body, MessageGroupId="u1", MessageDeduplicationId=dedup
    )


def bodies(aws: LocalAws) -> list[str]:
    url = aws.ensure_queues()[WORKER_CONTROL.name]
    answer = aws.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10)
    return [message["Body"] for message in answer.get("Messages", [])]


def test_every_queue_of_the_blueprint_exists_with_its_numbers(folder: Path) -> None:
    aws = LocalAws(folder).start()
    urls = aws.ensure_queues()
    assert urls == aws.ensure_queues()
    assert set(urls) == {queue.name for queue in QUEUES}
    told: dict[str, dict[str, Any]] = {
        name: aws.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        for name, url in urls.items()
    }
    for queue in QUEUES:
        assert told[queue.name]["QueueArn"] == arn(queue.name)
        assert told[queue.name]["VisibilityTimeout"] == str(int(queue.visibility.total_seconds()))
        assert told[queue.name]["MessageRetentionPeriod"] == str(int(queue.retention.total_seconds()))
        assert (told[queue.name].get("FifoQueue") == "true") is queue.fifo
        if queue.dead_letter:
            policy = json.loads(told[queue.name]["RedrivePolicy"])
            assert policy == {"deadLetterTargetArn": arn(queue.dead_letter), "maxReceiveCount": 3}
    assert told[WORKER_CONTROL.name]["ContentBasedDeduplication"] == "false"
    assert told[ORDER_TASKS.name]["ContentBasedDeduplication"] == "true"
    assert "RedrivePolicy" not in told[POOL_CLAIM.name]
    aws.stop()


def test_queues_of_an_older_blueprint_get_the_new_numbers(folder: Path) -> None:
    aws = LocalAws(folder).start()
    sqs, url = aws.client("sqs"), aws.ensure_queues()[POOL_CLAIM.name]
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "77"})
    aws.ensure_queues()
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"]
    assert told["VisibilityTimeout"] == "10"
    aws.stop()


def test_it_listens_on_loopback_only_and_keeps_secrets(folder: Path) -> None:
    aws = LocalAws(folder).start()
    assert aws.pid is not None
    listening = [c.laddr for c in psutil.Process(aws.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert [tuple(address) for address in listening] == [("127.0.0.1", aws.port)]
    secrets = aws.client("secretsmanager")
    secrets.create_secret(Name="broker/u1", SecretString="key")
    assert secrets.get_secret_value(SecretId="broker/u1")["SecretString"] == "key"
    aws.stop()


def test_a_killed_engine_leaves_an_endpoint_that_the_next_one_adopts(folder: Path) -> None:
    engine = subprocess.Popen(
        [sys.executable, "-c", ENGINE, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert engine.stdin is not None
    assert engine.stdout is not None
    with engine.stdin, engine.stdout:
        pid = int(engine.stdout.readline())
        engine.send_signal(signal.SIGKILL)
        engine.wait(10)

    aws = LocalAws(folder).start()
    assert aws.adopted
    assert aws.pid == pid
    assert bodies(aws) == ["queued"]
    aws.stop()
    assert not psutil.pid_exists(pid)


def test_an_endpoint_that_died_is_replaced(folder: Path) -> None:
    first = LocalAws(folder).start()
    assert first.pid is not None
    os.kill(first.pid, signal.SIGKILL)
    second = LocalAws(folder).start()
    assert not second.adopted
    assert second.pid != first.pid
    assert second.port == first.port, "whoever knows the address goes on"
    second.stop()


def test_a_reused_pid_is_not_taken_for_the_endpoint(folder: Path) -> None:
    me = psutil.Process()
    record = {"pid": me.pid, "started": me.create_time() - 100, "port": 1}
    (folder / "aws.json").write_text(json.dumps(record))
    aws = LocalAws(folder).start()
    assert not aws.adopted
    aws.stop()


def test_an_endpoint_that_does_not_answer_is_replaced_and_its_queues_are_kept(folder: Path) -> None:
    first = LocalAws(folder).start()
    send(first, "queued")
    assert first.pid is not None
    os.kill(first.pid, signal.SIGSTOP)
    second = LocalAws(folder).start(timeout=60, adopt_timeout=0.5)
    assert not second.adopted
    assert not psutil.pid_exists(first.pid)
    assert bodies(second) == ["queued"]
    second.stop()


def test_an_orderly_stop_keeps_what_is_queued_whatever_the_next_port_is(folder: Path) -> None:
    first = LocalAws(folder).start()
    send(first, "not handled yet")
    first.stop()
    assert not (folder / "aws.json").exists()
    second = LocalAws(folder).start()
    assert second.port != first.port
    assert bodies(second) == ["not handled yet"]
    second.stop()


def killed(aws: LocalAws) -> None:
    assert aws.pid is not None
    process = psutil.Process(aws.pid)
    process.kill()
    process.wait(10)


def test_a_killed_endpoint_is_back_with_every_message_in_order_and_every_secret(folder: Path) -> None:
    aws = LocalAws(folder).start()
    url = aws.ensure_queues()[WORKER_CONTROL.name]
    for number in range(12):
        send(aws, f"m{number}", dedup=str(number))
    sqs, secrets = aws.client("sqs"), aws.client("secretsmanager")
    sqs.send_message_batch(
        QueueUrl=url,
        Entries=[
            {"Id": "0", "MessageBody": "m12", "MessageGroupId": "u1", "MessageDeduplicationId": "12"},
            {"Id": "1", "MessageBody": "a repeat", "MessageGroupId": "u1", "MessageDeduplicationId": "12"},
        ],
    )
    secrets.create_secret(Name="broker/u1", SecretString="old")
    secrets.put_secret_value(SecretId="broker/u1", SecretString="new")
    gone = secrets.create_secret(Name="broker/u2", SecretString="gone")["ARN"]
    secrets.delete_secret(SecretId=gone, ForceDeleteWithoutRecovery=True)
    killed(aws)
    aws.restart()
    # Not created anew: whoever sends at once, before anybody has looked after the queues, is served.
    sqs.send_message(QueueUrl=url, MessageBody="m13", MessageGroupId="u1", MessageDeduplicationId="13")
    sqs.send_message(QueueUrl=url, MessageBody="a repeat", MessageGroupId="u1", MessageDeduplicationId="0")
    assert bodies(aws) + bodies(aws) == [f"m{number}" for number in range(10)], "a group waits for its first"
    told = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["VisibilityTimeout"])["Attributes"]
    assert told["VisibilityTimeout"] == str(int(WORKER_CONTROL.visibility.total_seconds()))
    assert secrets.get_secret_value(SecretId="broker/u1")["SecretString"] == "new"
    assert [one["Name"] for one in secrets.list_secrets()["SecretList"]] == ["broker/u1"]
    aws.stop()


def test_what_was_handled_does_not_come_back_after_a_kill(folder: Path) -> None:
    aws = LocalAws(folder).start()
    url, sqs = aws.ensure_queues()[WORKER_CONTROL.name], aws.client("sqs")
    for number in range(4):
        send(aws, f"m{number}", dedup=str(number))
    first, *rest = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=3)["Messages"]
    sqs.delete_message(QueueUrl=url, ReceiptHandle=first["ReceiptHandle"])
    sqs.delete_message_batch(
        QueueUrl=url,
        Entries=[{"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(rest)],
    )
    killed(aws)
    aws.restart()
    assert bodies(aws) == ["m3"]
    sqs.purge_queue(QueueUrl=url)
    killed(aws)
    aws.restart()
    assert bodies(aws) == []
    aws.stop()


def test_a_message_that_was_given_up_stays_given_up_after_a_kill(folder: Path) -> None:
    aws = LocalAws(folder).start()
    urls, sqs = aws.ensure_queues(), aws.client("sqs")
    send(aws, "poison")
    for _ in range(WORKER_CONTROL.max_receives + 1):
        for message in sqs.receive_message(QueueUrl=urls[WORKER_CONTROL.name]).get("Messages", ()):
            sqs.change_message_visibility(
                QueueUrl=urls[WORKER_CONTROL.name],
                ReceiptHandle=message["ReceiptHandle"],
                VisibilityTimeout=0,
            )
    killed(aws)
    aws.restart()
    assert bodies(aws) == []
    (parked,) = sqs.receive_message(QueueUrl=urls[WORKER_CONTROL_DLQ.name])["Messages"]
    assert parked["Body"] == "poison"
    aws.stop()


def test_half_a_message_is_one_that_nobody_was_told_of(folder: Path) -> None:
    aws = LocalAws(folder).start()
    send(aws, "whole")
    killed(aws)
    (folder / "aws" / "queues" / WORKER_CONTROL.name / "half.json").write_text('{"id": "ha')
    aws.restart()
    assert bodies(aws) == ["whole"]
    aws.stop()


def test_a_message_that_cannot_be_kept_is_refused(folder: Path) -> None:
    aws = LocalAws(folder).start()
    aws.ensure_queues()
    assert aws.pid is not None
    process = psutil.Process(aws.pid)
    _, hard = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (0, hard))
    url = aws.client("sqs").get_queue_url(QueueName=WORKER_CONTROL.name)["QueueUrl"]
    message = {"QueueUrl": url, "MessageBody": "x", "MessageGroupId": "u1", "MessageDeduplicationId": "1"}
    with pytest.raises(ClientError, match="could not be kept"):
        aws.client("sqs").send_message(**message)
    process.rlimit(psutil.RLIMIT_FSIZE, (hard, hard))
    aws.client("sqs").send_message(**message)
    assert bodies(aws) == ["x"]
    aws.stop()


def test_a_port_of_somebody_else_is_refused_with_the_way_out(folder: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(Refused, match=f"port {port} is in use.*--aws-port"):
            LocalAws(folder, port).start()


def test_a_proxy_of_the_environment_is_not_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    aws = LocalAws(folder).start()
    assert aws.ensure_queues()
    aws.stop()


def test_a_stop_does_not_wait_for_a_long_poll(folder: Path) -> None:
    aws = LocalAws(folder).start()
    url = aws.ensure_queues()[POOL_CLAIM.name]
    with socket.create_connection(("127.0.0.1", aws.port)) as poll:
        body = json.dumps({"QueueUrl": url, "WaitTimeSeconds": 20})
        poll.sendall(
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-amz-json-1.0\r\n"
            f"X-Amz-Target: AmazonSQS.ReceiveMessage\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        before = time.monotonic()
        aws.stop()
    assert time.monotonic() - before < 15
