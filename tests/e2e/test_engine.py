"""The whole system on one machine, driven from outside as a process tree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import boto3
import psutil
import pytest

from api.auth import Role
from api.signing import Signer
from local.driver import EngineProcess, until
from local.event_source import LONG_POLL_S
from local.valkey import embedded_valkey, free_port
from muster.warm_pool import MOST_LAUNCHES


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    engine = EngineProcess(tmp_path_factory.mktemp("up") / "engine", "--pool", "2", "--speed", "10")
    try:
        yield engine.start()
    finally:
        engine.end()


@pytest.fixture
def own_up(tmp_path: Path) -> Iterator[EngineProcess]:
    engine = EngineProcess(tmp_path / "engine", "--pool", "1", "--speed", "10")
    try:
        yield engine.start()
    finally:
        engine.end()


def _sqs(up: EngineProcess):
    return boto3.client(
        "sqs",
        endpoint_url=up.endpoints["aws"],
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )


def test_a_message_sent_by_the_aws_cli_makes_a_ready_worker(up: EngineProcess) -> None:
    words = [str(Path(sys.executable).parent / "aws"), "--endpoint-url", up.endpoints["aws"]]
    words += ["sqs", "send-message", "--queue-url", up.endpoints["queues"]["worker-control.fifo"]]
    words += ["--message-group-id", "cli-user", "--message-deduplication-id", "x"]
    words += ["--message-body", '{"action":"start","user_id":"cli-user"}']
    env = {"PATH": os.environ["PATH"], "AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
    env |= {"AWS_DEFAULT_REGION": "us-east-1", "HOME": str(up.folder)}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "MessageId" in json.loads(done.stdout)
    assert up.ready("cli-user")["want"] == "running"


def test_a_killed_worker_is_healed_and_a_stop_ends_it(up: EngineProcess) -> None:
    up.command("victim", "start")
    first = up.ready("victim")
    os.kill(first["pid"], signal.SIGKILL)
    second = up.ready("victim", first["epoch"])
    assert second["pid"] != first["pid"]
    up.command("victim", "stop")
    up.phase("victim", "stopped")
    until(lambda: not psutil.pid_exists(second["pid"]), "its process has ended")


def test_a_restart_hands_over_to_a_fresh_worker(up: EngineProcess) -> None:
    up.command("fresh", "start")
    first = up.ready("fresh")
    up.command("fresh", "restart")
    second = up.ready("fresh", first["epoch"])
    assert second["pid"] != first["pid"]
    until(lambda: not psutil.pid_exists(first["pid"]), "the old process has ended")


def test_bad_messages_are_parked_with_a_reason_and_disturb_nobody(up: EngineProcess) -> None:
    sqs, queue = _sqs(up), up.endpoints["queues"]["worker-control.fifo"]
    bodies = [
        "not json",
        "[1]",
        '{"action":"start"}',
        '{"action":"start","user_id":"../../etc"}',
        '{"action":"start","user_id":"u","surprise":1}',
        '{"action":"start","user_id":"nul\\u0000"}',
        '{"action":"start","user_id":"ünïcode"}',
        '{"action":"start","user_id":5}',
        json.dumps({"action": "start", "user_id": "u", "reason": "x" * 200_000}),
    ]
    for number, body in enumerate(bodies):
        sqs.send_message(
            QueueUrl=queue,
            MessageBody=body,
            MessageGroupId=f"g{number}",
            MessageDeduplicationId=f"bad-{number}",
        )
    up.command("undisturbed", "start")
    up.ready("undisturbed")
    reasons: dict[str, str] = {}

    def collect() -> bool:
        answer = sqs.receive_message(
            QueueUrl=up.endpoints["queues"]["worker-control-dlq.fifo"],
            MaxNumberOfMessages=10,
            MessageAttributeNames=["All"],
        )
        for message in answer.get("Messages", ()):
            reasons[message["Body"]] = message["MessageAttributes"]["reason"]["StringValue"]
        return len(reasons) == len(bodies)

    until(collect, "all bad messages are in the dead-letter queue")
    assert "not JSON" in reasons["not json"]
    assert "user_id" in reasons['{"action":"start","user_id":"../../etc"}']


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/workers/..%2F..%2Fetc/start", 404),
        ("/v1/workers/a%00b/start", 422),
        ("/v1/workers/%C3%BC/start", 422),
        ("/v1/workers/" + "x" * 129 + "/start", 422),
        ("/v1/workers/u/explode", 404),
    ],
)
def test_bad_requests_get_a_problem_with_a_reason(up: EngineProcess, path: str, status: int) -> None:
    answer = up.api.post(path)
    assert (answer.status_code // 100, answer.headers["content-type"]) == (4, "application/problem+json")
    assert answer.status_code in (status, 422)
    assert answer.json()["detail"]


def test_a_request_of_a_megabyte_is_refused(up: EngineProcess) -> None:
    answer = up.api.post("/v1/workers/u/start", content=b"x" * 1_000_000)
    assert answer.status_code == 413


def test_a_second_engine_on_the_folder_names_the_holder_and_leaves_it_alone(up: EngineProcess) -> None:
    words = [sys.executable, "-m", "cli.main", "up", "--dir", str(up.folder), "--api-port", "0"]
    second = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert up.process is not None
    assert f"pid {up.process.pid}" in second.stderr.replace("\n", " ")
    assert up.api.get("/readyz").status_code == 200


def test_a_killed_engine_loses_nobody_and_its_successor_adopts_the_workers(own_up: EngineProcess) -> None:
    own_up.command("survivor", "start")
    before = own_up.ready("survivor")
    own_up.kill()
    # A long poll of the dead engine is still open at the endpoint and would take the message into its grave
    # until the visibility ends (90 s): SQS does the same. Let it run out first.
    polls_end = time.monotonic() + LONG_POLL_S + 0.5
    until(lambda: time.monotonic() > polls_end, "the dead engine's long polls have ended")
    # The endpoint lives on: a command sent while no engine runs is waiting for the next one.
    _sqs(own_up).send_message(
        QueueUrl=own_up.endpoints["queues"]["worker-control.fifo"],
        MessageBody='{"action":"start","user_id":"patient"}',
        MessageGroupId="patient",
        MessageDeduplicationId="patient",
    )
    assert psutil.pid_exists(before["pid"])
    own_up.start()
    after = own_up.ready("survivor")
    assert (after["pid"], after["epoch"]) == (before["pid"], before["epoch"])
    own_up.ready("patient")
    os.kill(after["pid"], signal.SIGKILL)  # the successor watches a process it did not start
    own_up.ready("survivor", after["epoch"])


def test_sigterm_leaves_nothing_running_and_the_next_engine_brings_the_users_back(
    own_up: EngineProcess,
) -> None:
    own_up.command("comes-back", "start")
    own_up.ready("comes-back")
    assert own_up.processes()
    assert own_up.stop() == 0
    assert own_up.processes() == []
    own_up.start()
    own_up.ready("comes-back")


def test_the_claim_channel_sqs_serves_the_same_contract(tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path / "engine", "--pool", "1", "--claim-channel", "sqs")
    try:
        engine.start()
        until(lambda: engine.api.get("/v1/pool").json()["idle"] == 1, "the pool is full")
        engine.command("by-sqs", "start")
        assert engine.ready("by-sqs")["via"] == "warm"
    finally:
        engine.end()


def test_an_existing_server_is_used_and_left_running(tmp_path: Path) -> None:
    with embedded_valkey(tmp_path / "theirs") as theirs:
        engine = EngineProcess(tmp_path / "engine", "--pool", "1", "--valkey-url", theirs.url)
        try:
            engine.start()
            assert engine.endpoints["valkey"] == theirs.url
            engine.command("guest", "start")
            engine.ready("guest")
            assert engine.stop() == 0
        finally:
            engine.end()
        assert theirs.alive
        assert theirs.client().exists("worker:desired:{guest}") == 1


def test_a_pool_larger_than_one_run_launches_is_filled_at_once(tmp_path):
    size = MOST_LAUNCHES + 5
    engine = EngineProcess(tmp_path / "engine", "--pool", str(size))
    try:
        engine.start()
        until(lambda: engine.api.get("/v1/pool").json()["idle"] == size, "the pool is full")
    finally:
        engine.end()


def test_a_stopped_engine_leaves_no_job_worker_and_the_job_goes_back(tmp_path: Path) -> None:
    engine = EngineProcess(tmp_path / "engine", "--pool", "0")
    jobs = "/v1/pools/slow/jobs"

    def status() -> str:
        return str(engine.get(f"{jobs}/{pushed}")["status"])

    try:
        engine.start()
        answer = engine.api.post(jobs, json={"data": {"delay_s": 600}, "type": "echo"})
        answer.raise_for_status()
        pushed = answer.json()["ids"][0]
        until(lambda: status() == "claimed", "somebody works on it")
        assert engine.stop() == 0
        assert engine.processes() == []
        engine.start()
        until(lambda: status() in ("pending", "claimed"), "it is there, and not lost")
    finally:
        engine.end()


def test_the_triggers_of_an_engine_wake_its_pools_each_in_its_own_way(tmp_path: Path) -> None:
    """Every kind that the engine itself can start. What it has started for them ends with it."""
    folder, token = tmp_path / "engine", tmp_path / "token"
    api_port = free_port()
    kinds: dict[str, dict[str, str]] = {
        "in-loop": {},
        "subprocess": {},
        "lambda": {"function": "pool_manager"},
        "webhook": {"url": f"http://127.0.0.1:{api_port}", "token_file": str(token)},
    }
    entries = [
        {"name": kind, "type": kind, "on": "work_added", "input": {"pool_id": kind}} | more
        for kind, more in kinds.items()
    ]
    file = tmp_path / "triggers.yml"
    file.write_text(json.dumps({"triggers": entries}), encoding="utf-8")
    options = ("--pool", "0", "--triggers", str(file), "--api-port", str(api_port))
    engine = EngineProcess(folder, *options)
    try:
        engine.start()
        token.write_text(Signer.read(folder).token(Role.OPERATOR, None, timedelta(hours=1)), encoding="utf-8")
        engine.api.post("/v1/pools/untold/jobs", json={"data": {"n": 1}}).raise_for_status()
        for kind in kinds:
            engine.api.post(f"/v1/pools/{kind}/jobs", json={"data": {"n": 1}}).raise_for_status()
        engine.api.post("/v1/pools/in-loop/jobs", json={"data": {"delay_s": 600}}).raise_for_status()
        for kind in kinds:
            until(
                lambda kind=kind: engine.get(f"/v1/pools/{kind}")["done"] == 1, f"{kind} has woken its pool"
            )
        until(lambda: engine.get("/v1/pools/in-loop")["claimed"] == 1, "one works on")
        untold = engine.get("/v1/pools/untold")
        assert (untold["pending"], untold["workers"]) == (1, 0), "no trigger is for this one"
        # Whoever launched them: all job workers write where the engine's do, and it finds them at its end.
        assert len(list((folder / "workers" / "logs").glob("subprocess-*.log"))) == 1
        assert engine.stop() == 0
        assert engine.processes() == []
    finally:
        engine.end()


def test_an_engine_with_bad_triggers_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "triggers.yml"
    file.write_text("triggers: [{name: far, type: lambda, on: work_added, function: mine}]", encoding="utf-8")
    words = [
        sys.executable,
        "-m",
        "cli.main",
        "up",
        "--dir",
        str(tmp_path / "engine"),
        "--triggers",
        str(file),
    ]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "trigger far: the engine runs pool_manager" in done.stderr.replace("\n", " ")
    assert not (tmp_path / "engine").exists()
