"""The client without boto3 says to AWS what boto3 would, and survives what a network does."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials

from local.endpoint import REGION, LocalAws
from muster.aws import AwsClient, Keys, NotThere, find_keys, sign
from muster.brokers.port import BadCredentials
from muster.claims import Claim, SqsChannel
from muster.errors import TryLater
from muster.vault import secrets_reader

LOCAL = Keys("local", "local")
CLAIM = Claim("u1", 7, "v1", 1, "c1", "ref", "start")


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalAws]:
    started = LocalAws(tmp_path_factory.mktemp("aws")).start()
    yield started
    started.stop()


def client(endpoint: LocalAws, service: str) -> AwsClient:
    return AwsClient(service, REGION, endpoint.url, 5, LOCAL)


@pytest.mark.parametrize("token", ["", "session-token"])
def test_a_signature_is_the_one_botocore_makes(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"SecretId": "a"}'
    headers = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "secretsmanager.GetSecretValue"}
    host = "secretsmanager.eu-west-1.amazonaws.com"
    now = datetime(2026, 11, 18, 10, 0, tzinfo=UTC)
    ours = sign(Keys("AKIA", "secret", token), "secretsmanager", "eu-west-1", host, headers, body, now)

    request = AWSRequest("POST", f"https://{host}/", data=body, headers=headers)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: now.replace(tzinfo=None))
    theirs = SigV4Auth(BotoCredentials("AKIA", "secret", token or None), "secretsmanager", "eu-west-1")
    theirs.add_auth(request)
    assert ours["Authorization"] == request.headers["Authorization"]


def test_credentials_are_read_and_a_missing_secret_is_named(endpoint: LocalAws) -> None:
    endpoint.client("secretsmanager").create_secret(
        Name="users/u1",
        SecretString=json.dumps({"broker": "alpaca", "key_id": "key-of-u1", "secret": "s" * 20}),
    )
    read = secrets_reader(client(endpoint, "secretsmanager"))

    assert read("users/u1").key_id == "key-of-u1"
    with pytest.raises(BadCredentials, match="no secret 'users/u2'"):
        read("users/u2")


def test_a_claim_travels_is_given_back_and_is_settled(endpoint: LocalAws) -> None:
    url = endpoint.client("sqs").create_queue(QueueName="claims")["QueueUrl"]
    channel = SqsChannel(client(endpoint, "sqs"), url)

    assert channel.send([CLAIM]) == []
    first = channel.receive(2)
    assert first is not None
    first.give_back()
    second = channel.receive(2)
    assert second is not None
    assert Claim.from_json(second.body) == CLAIM
    second.done()
    assert channel.receive(0) is None


def test_many_threads_share_a_client(endpoint: LocalAws) -> None:
    url = endpoint.client("sqs").create_queue(QueueName="shared")["QueueUrl"]
    sqs = client(endpoint, "sqs")
    entries = [{"Id": "0", "MessageBody": "x"}]
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(sqs.receive_message(QueueUrl=url, WaitTimeSeconds=5))
    )
    waiting.start()
    sqs.send_message_batch(QueueUrl=url, Entries=entries)  # does not wait for the long poll
    waiting.join(10)
    assert [message["Body"] for message in answers[0]["Messages"]] == ["x"]


class _Server(BaseHTTPRequestHandler):
    """Answers as often as it is told to, then closes the connection it had promised to keep."""

    protocol_version = "HTTP/1.1"
    status = 200
    body: bytes = b"{}"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)
        self.close_connection = True

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def closing_server() -> Iterator[type[_Server]]:
    handler = type("Handler", (_Server,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield handler
        server.shutdown()


def test_a_kept_connection_that_was_closed_costs_nobody_an_error(closing_server: type[_Server]) -> None:
    sqs = AwsClient("sqs", REGION, closing_server.url, 5, LOCAL)

    assert [sqs.delete_message(QueueUrl="q", ReceiptHandle="r") for _ in range(3)] == [{}, {}, {}]


@pytest.mark.parametrize(
    ("status", "body"),
    [(503, b""), (400, b'{"__type": "com.amazonaws#ThrottlingException"}'), (200, b"<html>")],
)
def test_whatever_may_pass_is_tried_later(closing_server: type[_Server], status: int, body: bytes) -> None:
    closing_server.status, closing_server.body = status, body
    with pytest.raises(TryLater):
        AwsClient("sqs", REGION, closing_server.url, 5, LOCAL).receive_message(QueueUrl="q")


def test_what_is_not_there_is_told_apart(closing_server: type[_Server]) -> None:
    closing_server.status = 400
    closing_server.body = b'{"__type": "ResourceNotFoundException", "Message": "no"}'
    with pytest.raises(NotThere):
        AwsClient("secretsmanager", REGION, closing_server.url, 5, LOCAL).get_secret_value(SecretId="a")


def test_keys_come_from_the_variables_or_the_role_of_the_task(
    tmp_path: Path, closing_server: type[_Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_keys(
        {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    ) == Keys("a", "s", "t")
    closing_server.do_GET = _role  # type: ignore[attr-defined]
    monkeypatch.setattr("muster.aws._TASK_AGENT", closing_server.url)
    found = find_keys({"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/credentials/x"})
    assert (found.access, found.secret, found.token) == ("ra", "rs", "rt")
    assert found.until == datetime(2026, 11, 18, 16, 0, tzinfo=UTC).timestamp()


def _role(self: _Server) -> None:
    said = {"AccessKeyId": "ra", "SecretAccessKey": "rs", "Token": "rt", "Expiration": "2026-11-18T16:00:00Z"}
    body = json.dumps(said).encode()
    self.send_response(200)
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body)
