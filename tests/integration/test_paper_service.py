"""The engine's paper broker and its planned checks: adopted, kept, and the same account for ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from local.checks import PLANNED, PlannedChecks
from local.driver import until
from local.endpoint import LocalAws
from local.paper.service import PaperService, credentials_ref, with_accounts
from muster.blueprint import FN_ORDER_TASKS, ORDER_TASKS, ORDER_TASKS_DLQ
from muster.brokers.connect import connect
from muster.brokers.port import Credentials
from muster.orders import FillCheck, parse_check
from muster.store import Store
from muster.vault import secrets_reader


@pytest.fixture(scope="module")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    endpoint = LocalAws(tmp_path_factory.mktemp("aws")).start()
    yield endpoint
    endpoint.stop()


@pytest.fixture
def paper(tmp_path: Path) -> Iterator[PaperService]:
    service = PaperService(tmp_path / "paper")
    service.start()
    yield service
    service.stop()


def read(aws: LocalAws, user: str) -> Credentials:
    return secrets_reader(aws.client("secretsmanager"))(credentials_ref(user))


def test_the_next_engine_adopts_the_paper_broker_of_a_killed_one(paper: PaperService, tmp_path: Path) -> None:
    successor = PaperService(tmp_path / "paper")
    assert successor.start() == paper.url
    assert successor._process == paper._process


def test_a_paper_broker_that_ended_is_started_again_at_the_same_address(paper: PaperService) -> None:
    url, first = paper.url, paper._process
    assert first is not None
    first.kill()
    until(lambda: not psutil.pid_exists(first.pid) or first.status() == psutil.STATUS_ZOMBIE, "it has ended")
    paper.keep()
    assert (paper.url, paper._process == first) == (url, False)
    paper.keep()


def test_a_user_gets_an_account_that_opens_and_keeps_it_when_the_secrets_are_lost(
    paper: PaperService, aws: LocalAws, tmp_path: Path
) -> None:
    vault = aws.client("secretsmanager")
    assert paper.give_account("u1", vault) == "muster/broker/u1"
    broker = connect(read(aws, "u1"))
    account = broker.account().account_id
    broker.close()
    vault.delete_secret(SecretId="muster/broker/u1", ForceDeleteWithoutRecovery=True)
    successor = PaperService(tmp_path / "paper")
    successor.start()
    successor.give_account("u1", vault)
    again = connect(read(aws, "u1"))
    assert again.account().account_id == account
    again.close()


def test_two_users_have_two_accounts_and_two_secrets(paper: PaperService, aws: LocalAws) -> None:
    vault = aws.client("secretsmanager")
    first, second = (read(aws, user) for user in ("u1", "u2") if paper.give_account(user, vault))
    assert first.key_id != second.key_id
    assert first.secret != second.secret


@pytest.mark.parametrize(
    ("body", "credentialed"),
    [
        ({"action": "start", "user_id": "u1"}, True),
        ({"action": "restart", "user_id": "u1"}, True),
        ({"action": "start", "user_id": "u1", "credentials_ref": "own/ref"}, False),
        ({"action": "stop", "user_id": "u1"}, False),
        ({"action": "restart", "user_id": "u1", "cause": "repair", "seen_epoch": 5}, False),
        ({"action": "start", "user_id": "../.."}, False),
        ("not json", False),
    ],
)
def test_only_a_persons_start_without_credentials_gets_an_account(
    paper: PaperService, aws: LocalAws, body: Any, credentialed: bool
) -> None:
    seen: list[str] = []
    handler = with_accounts(
        lambda event, _: seen.append(event["Records"][0]["body"]), paper, aws.client("secretsmanager")
    )
    sent = body if isinstance(body, str) else json.dumps(body)
    handler({"Records": [{"body": sent}]}, None)
    if credentialed:
        assert json.loads(seen[0]) == body | {"credentials_ref": "muster/broker/u1"}
    else:
        assert seen == [sent]


def test_planned_checks_are_sent_when_due_and_survive_their_engine(valkey: Any, aws: LocalAws) -> None:
    queue = aws.ensure_queues()[ORDER_TASKS.name]
    store, sqs = Store(valkey), aws.client("sqs")
    check = FillCheck(user_id="u1", order_id="o1", credentials_ref="r", look=2)
    engine = PlannedChecks(store, sqs, queue, speed=1.0)
    engine.plan(check, timedelta(hours=1))
    engine.plan(check.next_look(), timedelta(0))
    engine.plan(check.next_look(), timedelta(hours=1))  # a repeat does not move it
    PlannedChecks(store, sqs, queue, speed=1.0).send_due()
    got = sqs.receive_message(QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=1)["Messages"]
    assert [parse_check(message["Body"]).look for message in got] == [3]
    assert valkey.zcard(PLANNED) == 1
    sqs.purge_queue(QueueUrl=queue)


def test_a_check_that_nobody_answers_is_in_the_dead_letter_queue_after_three_receives(aws: LocalAws) -> None:
    """The queue's own work; here with the visibility that order_tasks asks for set to nothing."""
    urls, sqs = aws.ensure_queues(), aws.client("sqs")
    queue, dlq = urls[ORDER_TASKS.name], urls[ORDER_TASKS_DLQ.name]
    body = FillCheck(user_id="u1", order_id="dead", credentials_ref="r").body()
    sqs.send_message(QueueUrl=queue, MessageBody=body, MessageGroupId="dead", MessageDeduplicationId="d1")
    assert FN_ORDER_TASKS.queue is ORDER_TASKS
    for _ in range(3):
        (message,) = sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=2)["Messages"]
        sqs.change_message_visibility(
            QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0
        )
    assert "Messages" not in sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=1)
    (given_up,) = sqs.receive_message(QueueUrl=dlq, WaitTimeSeconds=2)["Messages"]
    assert parse_check(given_up["Body"]).order_id == "dead"
