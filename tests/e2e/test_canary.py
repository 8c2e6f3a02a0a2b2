"""Canary credentials through a whole life: afterwards they are looked for everywhere, and nobody has them.

The life has what makes systems talk: fills, a kill, a broker that quotes the headers it was sent, credentials
that are refused, messages that are parked. A canary is at home only in Secrets Manager and with the broker.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import httpx
import psutil
import pytest
import redis

from local.driver import EngineProcess, until

KEY, SECRET, WRONG = "CANARYKEY4b1f9e", "canary-secret-0f6c1e7d9b", "canary-wrong-77c0d2e8a1"
CANARIES = (KEY, SECRET, WRONG)
REF, WRONG_REF = "muster/broker/canary", "muster/broker/wrong"
LOCAL = {"region_name": "us-east-1", "aws_access_key_id": "local", "aws_secret_access_key": "local"}
#: How each kind of value in Valkey is read as a whole.
READERS = {
    "string": ("GET",),
    "hash": ("HGETALL",),
    "set": ("SMEMBERS",),
    "list": ("LRANGE", 0, -1),
    "zset": ("ZRANGE", 0, -1),
    "stream": ("XRANGE", "-", "+"),
}


@dataclass
class Places:
    """Everything that was looked at: a name that says where, and what was there."""

    engine: EngineProcess
    seen: dict[str, bytes] = field(default_factory=dict)

    def holding(self, canary: str) -> list[str]:
        return sorted(name for name, content in self.seen.items() if canary.encode() in content)

    def look_at_files(self) -> None:
        """Every file there is: logs, the store's append-only file, records, the broker's book."""
        folder = self.engine.folder
        for path in [self.engine.log, *folder.rglob("*")]:
            if path.is_file():
                self.seen[f"file {path.relative_to(folder.parent)}"] = path.read_bytes()

    def look_at_processes(self) -> None:
        for process in self.engine.processes():
            for name in ("environ", "cmdline"):
                try:
                    said = Path(f"/proc/{process.pid}/{name}").read_bytes()
                except OSError:
                    continue  # it has ended meanwhile
                self.seen[f"process {process.pid} {name}"] = said

    def look_at_keys(self) -> None:
        client = redis.Redis.from_url(self.engine.endpoints["valkey"])
        for key in client.scan_iter(count=1000):
            kind = client.type(key).decode()
            if kind != "none":  # it has expired meanwhile
                command, *rest = READERS[kind]
                self.seen[f"key {kind} {key.decode()}"] = (
                    key + repr(client.execute_command(command, key, *rest)).encode()
                )
        client.close()

    def look_at_answers(self, **names: str) -> None:
        """Every GET of the API that these names can fill in."""
        paths = self.engine.get("/openapi.json")["paths"]
        for path in [path for path, methods in paths.items() if "get" in methods and "events" not in path]:
            try:
                filled = path.format(**names)
            except KeyError:
                continue
            answer = self.engine.api.get(filled)
            self.seen[f"answer {filled}"] = answer.content + str(answer.headers).encode()

    def queues(self) -> set[str]:
        """The queues that had a message."""
        return {name.split()[1] for name in self.seen if name.startswith("message ")}

    def look_at_queues(self) -> None:
        """What can be received now, from every queue and dead-letter queue."""
        sqs = boto3.client("sqs", endpoint_url=self.engine.endpoints["aws"], **LOCAL)
        for name, url in self.engine.endpoints["queues"].items():
            told = sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=10,
                MessageAttributeNames=["All"],
                MessageSystemAttributeNames=["All"],
            )
            for message in told.get("Messages", ()):
                self.seen[f"message {name} {message['MessageId']}"] = json.dumps(
                    message, default=str
                ).encode()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    folder = tmp_path_factory.mktemp("canary") / "engine"
    engine = EngineProcess(folder, "--pool", "2", "--speed", "10", "--session", "broker")
    try:
        yield engine.start()
    finally:
        engine.end()


def put_secret(up: EngineProcess, name: str, secret: str) -> None:
    vault = boto3.client("secretsmanager", endpoint_url=up.endpoints["aws"], **LOCAL)
    said = {"broker": "paper", "key_id": KEY, "secret": secret, "url": up.endpoints["paper"]}
    vault.create_secret(Name=name, SecretString=json.dumps(said))


def start(up: EngineProcess, user: str, reference: str) -> None:
    answer = up.api.post(f"/v1/workers/{user}/start", json={"credentials_ref": reference})
    assert answer.status_code == 202, answer.text


def place(up: EngineProcess, user: str) -> str:
    answer = up.api.post(f"/v1/users/{user}/orders", json={"symbol": "MSFT", "side": "buy", "qty": "1"})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["order_id"])


def order(up: EngineProcess, user: str, order_id: str) -> dict[str, Any]:
    return dict(up.get(f"/v1/users/{user}/orders/{order_id}"))


def send(up: EngineProcess, queue: str, group: str, body: str) -> None:
    sqs = boto3.client("sqs", endpoint_url=up.endpoints["aws"], **LOCAL)
    url = up.endpoints["queues"][queue]
    sqs.send_message(QueueUrl=url, MessageBody=body, MessageGroupId=group, MessageDeduplicationId=body[:99])


def turn(up: EngineProcess, **knobs: Any) -> None:
    httpx.patch(f"{up.endpoints['paper']}/admin/faults", json=knobs).raise_for_status()


def dead_letters(up: EngineProcess, queue: str) -> int:
    return int(next(q for q in up.get("/v1/queues") if q["name"] == queue)["dead_letter"])


def check(order_id: str, user: str, reference: str) -> str:
    said = {"version": 1, "user_id": user, "order_id": order_id, "credentials_ref": reference}
    return json.dumps(said)


@pytest.fixture(scope="module")
def places(up: EngineProcess) -> Places:
    """The whole life, and everything it left behind."""
    put_secret(up, REF, SECRET)
    put_secret(up, WRONG_REF, WRONG)
    start(up, "canary", REF)
    first = up.ready("canary")
    filled = place(up, "canary")
    until(lambda: order(up, "canary", filled)["verified"] == "verified", "the fill was checked")

    os.kill(first["pid"], signal.SIGKILL)
    up.ready("canary", above_epoch=first["epoch"])

    start(up, "stranger", WRONG_REF)
    up.phase("stranger", "failed")
    assert "does not accept this key" in up.worker("stranger")["reason"]

    send(up, "worker-control.fifo", "canary", '{"action": "start", "user_id": "canary", "surprise": 1}')
    send(up, "order-tasks.fifo", filled, check(filled, "canary", WRONG_REF))
    for queue in ("worker-control.fifo", "order-tasks.fifo"):
        until(lambda queue=queue: dead_letters(up, queue) == 1, f"{queue} has parked it")

    turn(up, server_error=1.0, echo_headers=True)
    unsure = place(up, "canary")
    until(lambda: "status 500" in str(up.worker("canary")["reason"]), "the worker says what the broker says")
    send(up, "order-tasks.fifo", unsure, check(unsure, "canary", REF))
    until(lambda: "status 500" in order(up, "canary", unsure)["verified"], "the check says it too")

    seen = Places(up)
    seen.look_at_answers(user_id="canary", order_id=unsure, queue="order-tasks.fifo")
    seen.look_at_answers(user_id="stranger", order_id=filled, queue="worker-control.fifo")
    seen.look_at_keys()
    seen.look_at_processes()
    # Without its engine nobody takes the messages away, and the one in flight comes back.
    up.kill()
    queues = {"worker-control-dlq.fifo", "order-tasks-dlq.fifo", "order-tasks.fifo"}

    def all_read() -> bool:
        seen.look_at_queues()
        return queues <= seen.queues()

    until(all_read, "every queue was read", 30)
    up.start()
    turn(up, server_error=0.0)
    until(lambda: order(up, "canary", unsure)["final"], "the order ended when the broker was back")
    seen.look_at_keys()
    seen.look_at_processes()
    seen.look_at_files()
    return seen


@pytest.mark.timeout(180)
def test_no_canary_is_anywhere_but_at_home(places: Places) -> None:
    for kind, least in (("file", 10), ("process", 10), ("key", 10), ("answer", 10), ("message", 3)):
        assert sum(name.startswith(kind) for name in places.seen) >= least, f"hardly a {kind} was looked at"
    assert places.holding(SECRET) == []
    assert places.holding(WRONG) == []
    # The broker's book is kept by key id: that is whose account it is.
    assert [name for name in places.holding(KEY) if "paper/book.sqlite" not in name] == []


@pytest.mark.timeout(180)
def test_the_broker_did_quote_the_headers_and_what_is_left_of_them_is_stars(places: Places) -> None:
    quoted = places.holding("'apca-api-secret-key': '***'")
    assert [name for name in quoted if name.startswith("file engine/workers/logs/")], "the worker's log"
    assert "file engine/functions.log" in quoted
    assert "answer /v1/workers/canary" in quoted


@pytest.mark.timeout(180)
def test_a_canary_would_be_found_in_every_kind_of_place(places: Places, up: EngineProcess) -> None:
    planted = "canary-planted-9d41c7"
    (up.folder / "workers" / "logs" / "planted.log").write_text(f"token {planted}\n", encoding="utf-8")
    sqs = boto3.client("sqs", endpoint_url=up.endpoints["aws"], **LOCAL)
    for name, url in up.endpoints["queues"].items():
        if name.endswith("-dlq.fifo"):
            attributes = {"reason": {"DataType": "String", "StringValue": planted}}
            sqs.send_message(
                QueueUrl=url,
                MessageBody="{}",
                MessageGroupId="planted",
                MessageDeduplicationId=name,
                MessageAttributes=attributes,
            )
    client = redis.Redis.from_url(up.endpoints["valkey"])
    client.set("planted:string", planted)
    client.hset("planted:hash", "field", planted)
    client.sadd("planted:set", planted)
    client.rpush("planted:list", planted)
    client.zadd("planted:zset", {planted: 1})
    client.xadd("planted:stream", {"field": planted})
    client.set(f"planted:name:{planted}", "")
    program = [sys.executable, "-c", "import sys; sys.stdin.read()", str(up.folder), planted]
    process = subprocess.Popen(program, env=os.environ | {"PLANTED": planted}, stdin=subprocess.PIPE)
    try:
        seen = Places(up)
        until(lambda: _shows(process.pid, planted), "the process has its own command line")
        seen.look_at_files()
        seen.look_at_processes()
        seen.look_at_keys()
        seen.look_at_answers(user_id="canary", queue="order-tasks.fifo")
        seen.look_at_queues()
    finally:
        process.communicate()
        client.delete(*client.keys("planted:*"))
        client.close()
    found = seen.holding(planted)
    assert "file engine/workers/logs/planted.log" in found
    assert {f"process {process.pid} {name}" for name in ("environ", "cmdline")} <= set(found)
    assert {name.split()[1] for name in found if name.startswith("key ")} == READERS.keys()
    assert f"key string planted:name:{planted}" in found
    assert len([name for name in found if name.startswith("message ") and "-dlq.fifo" in name]) == 2
    assert [name for name in found if name.startswith("answer /v1/queues/order-tasks.fifo/dead-letters")]


def _shows(pid: int, word: str) -> bool:
    return word in psutil.Process(pid).cmdline()
