"""Each handler, from the packaged zip alone, through the real runtime client, with its own Valkey user.

Every AWS call on the way is written down and compared with the role's synthesised policy, both ways.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
import redis
from fastapi.testclient import TestClient

from api import main as api_main
from api.fleet import Fleet as ApiFleet
from api.signing import JWKS_FILE, LOCAL
from api.source import WorkerQuery
from infra import bundling
from infra.permissions import GRANTS, VALKEY_ACCESS, By, Role
from local.valkey import EmbeddedValkey, embedded_valkey
from muster import blueprint, keys, steps
from muster.claims import Claim, SqsChannel
from muster.commands import Action
from muster.model import Cause
from muster.settings import Settings
from muster.store import Store
from muster.vault import secrets_reader
from tests.api_stand import BEARER, SIGNER
from tests.infra.lambda_runtime import Call, Function, Recorder, function, recording, runtime_folder, serving
from tests.infra.synthesis import ROOT, Synth, wait_for
from worker.broker import SqsChecks
from worker.inbox import Check

CLUSTER = "local-muster"
ACCOUNT = {"id": "a", "currency": "USD", "cash": "1", "equity": "1", "buying_power": "1"}
ACCOUNT |= {"trading_blocked": False, "account_blocked": False}
PASSWORD = "for-this-test-only"


@pytest.fixture(scope="module")
def task_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task") / "root"
    with zipfile.ZipFile(bundling.bundle(bundling.this_machine())) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runtime_folder(tmp_path_factory.mktemp("runtime") / "packages")


@pytest.fixture(scope="module")
def recorder(deployment: tuple[Path, str], client: Callable[[str], Any]) -> Iterator[Recorder]:
    """The deployed endpoint behind the proxy, with a cluster, and with its own pollers switched off."""
    functions, events, ecs = client("lambda"), client("events"), client("ecs")
    for mapping in functions.list_event_source_mappings()["EventSourceMappings"]:
        functions.update_event_source_mapping(UUID=mapping["UUID"], Enabled=False)
    for rule in events.list_rules()["Rules"]:
        events.disable_rule(Name=rule["Name"])
    ecs.create_cluster(clusterName=CLUSTER)
    ecs.register_task_definition(
        family="local-worker",
        containerDefinitions=[{"name": "worker", "image": "worker", "cpu": 64, "memory": 384}],
    )
    with recording(deployment[1]) as running:
        yield running


@pytest.fixture(scope="module")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A Valkey with the users of the templates; only how they sign in differs."""
    with embedded_valkey(tmp_path_factory.mktemp("valkey-users")) as server:
        admin = server.client()
        for role, access in VALKEY_ACCESS.items():
            admin.execute_command("ACL", "SETUSER", role.user, f">{PASSWORD}", *access.split())
        admin.close()
        yield server


@pytest.fixture
def store(store_server: EmbeddedValkey) -> Iterator[Store]:
    client = store_server.client()
    client.flushall()
    yield Store(client)
    client.close()


@pytest.fixture(scope="module")
def calls() -> dict[Role, list[Call]]:
    """What each role called, over all tests of this file."""
    return defaultdict(list)


@pytest.fixture
def start(
    task_root: Path,
    runtime: Path,
    recorder: Recorder,
    store_server: EmbeddedValkey,
    client: Callable[[str], Any],
    calls: dict[Role, list[Call]],
    tmp_path: Path,
) -> Iterator[Callable[[Role], Function]]:
    """Start a function with the variables its deployment gave it."""
    from contextlib import ExitStack

    with ExitStack() as stack:
        started: list[Role] = []

        def begin(role: Role, **more: str) -> Function:
            assert not started, "one function per test, so that its calls are known"
            started.append(role)
            recorder.calls.clear()
            deployed = client("lambda").get_function_configuration(FunctionName=f"local-{role.value}")
            variables = deployed["Environment"]["Variables"] | {
                "MUSTER_AWS_ENDPOINT": recorder.url,
                "MUSTER_VALKEY_URL": f"redis://{role.user}:{PASSWORD}@127.0.0.1:{store_server.port}/0",
            }
            handler = deployed["Handler"]
            return stack.enter_context(
                function(handler, task_root, runtime, variables | more, tmp_path / "function.log")
            )

        yield begin
        for role in started:
            calls[role] += recorder.calls
        recorder.refuse.clear()
        recorder.older_s = 0.0


def record(body: str, group: str, queue: str) -> dict[str, Any]:
    """A message as the event source hands it over."""
    return {
        "messageId": str(uuid.uuid4()),
        "receiptHandle": str(uuid.uuid4()),
        "body": body,
        "attributes": {
            "MessageGroupId": group,
            "SentTimestamp": str(round(time.time() * 1000)),
            "ApproximateReceiveCount": "1",
        },
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": f"arn:aws:sqs:us-east-1:000000000000:local-{queue}",
    }


def command(action: str, user: str) -> dict[str, Any]:
    body = {
        "version": 1,
        "action": action,
        "user_id": user,
        "command_id": str(uuid.uuid4()),
        "issued_at": datetime.now(UTC).isoformat(),
    }
    return record(json.dumps(body), user, blueprint.WORKER_CONTROL.name)


def actions(recorder: Recorder) -> set[str]:
    return {call.action for call in recorder.calls}


def test_worker_control_starts_claims_stops_parks_and_brings_back(
    start: Callable[..., Function], store: Store, recorder: Recorder, client: Callable[[str], Any]
) -> None:
    running = start(Role.WORKER_CONTROL)
    cold, broken = command("start", "u-cold"), record("{", "u-bad", blueprint.WORKER_CONTROL.name)
    assert running.invoke({"Records": [cold, broken]}) == {"batchItemFailures": []}
    assert {"ecs:RunTask", "sqs:SendMessage"} <= actions(recorder)
    assert store.client.hget(keys.starting("u-cold"), "task_id")
    assert running.invoke({"Records": [command("stop", "u-cold")]}) == {"batchItemFailures": []}
    assert "ecs:StopTask" in actions(recorder)

    store.one(steps.plan_pool("default", 2, "local", "r-1", 0))
    store.one(steps.pool_beat("default", "w-1", "task-1", "local", "", "host"))
    assert running.invoke({"Records": [command("start", "u-warm")]}) == {"batchItemFailures": []}
    assert Call("sqs:SendMessage", "local-pool-claim") in recorder.calls
    assert Call("lambda:InvokeFunction", "local-pool_manager") in recorder.calls

    recorder.known_task = run_task(client, "user")
    assert running.invoke({"Records": [command("start", "u-again")]}) == {"batchItemFailures": []}
    assert "ecs:DescribeTasks" in actions(recorder)

    recorder.refuse.add("RunTask")
    late = command("start", "u-late")
    answer = running.invoke({"Records": [late]})
    assert answer == {"batchItemFailures": [{"itemIdentifier": late["messageId"]}]}
    assert Call("sqs:ChangeMessageVisibility", "local-worker-control.fifo") in recorder.calls


def test_order_tasks_asks_the_broker_and_plans_the_next_look(
    start: Callable[..., Function], store: Store, recorder: Recorder, client: Callable[[str], Any]
) -> None:
    from http.server import BaseHTTPRequestHandler

    class KnowsNoOrder(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.startswith("/v2/account")
            body = json.dumps(ACCOUNT if found else {}).encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    running = start(Role.ORDER_TASKS)
    with serving(KnowsNoOrder) as port:
        secret = {"broker": "paper", "key_id": "k", "secret": "s", "url": f"http://127.0.0.1:{port}"}
        client("secretsmanager").create_secret(
            Name="muster/local/brokers/u-1", SecretString=json.dumps(secret)
        )
        check = {"user_id": "u-1", "order_id": "o-1", "credentials_ref": "muster/local/brokers/u-1"}
        good = record(json.dumps(check), "o-1", blueprint.ORDER_TASKS.name)
        bad = record("{", "o-2", blueprint.ORDER_TASKS.name)
        assert running.invoke({"Records": [good, bad]}) == {"batchItemFailures": []}
    assert {"secretsmanager:GetSecretValue", "scheduler:CreateSchedule"} <= actions(recorder)
    # The broker is gone now: the record comes back soon.
    again = record(json.dumps(check), "o-1", blueprint.ORDER_TASKS.name)
    answer = running.invoke({"Records": [again]})
    assert answer == {"batchItemFailures": [{"itemIdentifier": again["messageId"]}]}
    assert Call("sqs:ChangeMessageVisibility", "local-order-tasks.fifo") in recorder.calls


def run_task(client: Callable[[str], Any], kind: str) -> str:
    answer = client("ecs").run_task(
        cluster=CLUSTER, taskDefinition="local-worker:1", startedBy=f"muster/{kind}", count=1
    )
    return str(answer["tasks"][0]["taskArn"])


def test_maintenance_cuts_a_sweep_and_stops_what_nobody_owns(
    start: Callable[..., Function], store: Store, recorder: Recorder, client: Callable[[str], Any]
) -> None:
    orphan = run_task(client, "user")
    recorder.older_s = 3600.0
    running = start(Role.MAINTENANCE)
    reports = [running.invoke({}) for _ in range(4)]
    assert not any(report["busy"] for report in reports)
    assert "ecs:StopTask" in actions(recorder), f"{orphan} belongs to nobody and still runs"
    store.one(steps.index_add("u-swept"))
    assert running.invoke({})["users"] == 1
    assert Call("lambda:InvokeFunction", "local-maintenance_worker") in recorder.calls


def test_maintenance_worker_repairs_a_batch_and_hears_of_ecs(
    start: Callable[..., Function], store: Store, recorder: Recorder, client: Callable[[str], Any]
) -> None:
    running = start(Role.MAINTENANCE_WORKER)
    begun = store.one(steps.begin_start("u-lost", Cause.START, 1, "c-1"))
    assert isinstance(begun, steps.Begin)
    gone = f"arn:aws:ecs:us-east-1:000000000000:task/{CLUSTER}/{uuid.uuid4().hex}"
    store.run(steps.bind_start("u-lost", begun.epoch, gone), steps.index_add("u-lost"))
    store.client.delete(keys.starting("u-lost"))
    batch = {"run_id": "r-1", "number": 0, "buckets": [keys.bucket_of("u-lost")]}
    assert running.invoke({"batch": batch})["users"] == 1
    assert Call("sqs:SendMessage", "local-worker-control.fifo") in recorder.calls

    idle = run_task(client, "pool")
    store.one(steps.pool_beat("default", "w-1", idle, "local", "", "host"))
    instance = (
        client("ecs")
        .describe_tasks(cluster=CLUSTER, tasks=[idle])["tasks"][0]
        .get("containerInstanceArn", f"arn:aws:ecs:us-east-1:000000000000:container-instance/{CLUSTER}/i-1")
    )
    detail = {"containerInstanceArn": instance, "status": "DRAINING"}
    told = running.invoke({"detail-type": blueprint.INSTANCE_DRAINING.detail_type, "detail": detail})
    assert told["done"] == "draining"
    assert {"ecs:ListTasks", "ecs:StopTask"} <= actions(recorder)

    store.one(steps.pool_beat("default", "w-2", "task-2", "local", "", "host"))
    detail = {"taskArn": "task-2", "lastStatus": "STOPPED", "stoppedReason": "gone"}
    running.invoke({"detail-type": blueprint.TASK_STOPPED.detail_type, "detail": detail})
    assert Call("lambda:InvokeFunction", "local-pool_manager") in recorder.calls


def test_pool_manager_fills_and_empties_the_pool(
    start: Callable[..., Function], store: Store, recorder: Recorder, client: Callable[[str], Any]
) -> None:
    running = start(Role.POOL_MANAGER, MUSTER_POOL_TARGET="2")
    recorder.known_task = run_task(client, "pool")
    assert running.invoke({})["launched"] == 2
    tasks = store.client.hgetall(keys.pool_tasks("default"))
    for number, (launch, task) in enumerate(tasks.items()):
        store.one(steps.pool_beat("default", f"w-{number}", task, "local", launch, "host"))
    store.client.hset(keys.pool_config("default"), "wanted", 0)
    assert running.invoke({})["retired"] == 2
    assert {"ecs:RunTask", "ecs:StopTask"} <= actions(recorder)


def aws(url: str, service: str) -> Any:
    return boto3.client(
        service,
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )


def variables_of(client: Callable[[str], Any], recorder: Recorder) -> dict[str, str]:
    """What the control plane's functions are told; workers and API get the same names."""
    deployed = client("lambda").get_function_configuration(FunctionName="local-order_tasks")
    return dict(deployed["Environment"]["Variables"]) | {"MUSTER_AWS_ENDPOINT": recorder.url}


def test_a_pool_worker_takes_a_claim_and_serves_with_its_own_rights(
    recorder: Recorder,
    client: Callable[[str], Any],
    store: Store,
    store_server: EmbeddedValkey,
    calls: dict[Role, list[Call]],
    tmp_path: Path,
) -> None:
    variables = variables_of(client, recorder) | {
        "MUSTER_VALKEY_URL": f"redis://worker:{PASSWORD}@127.0.0.1:{store_server.port}/0",
        "MUSTER_TASK_ID": "task-1",
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "PYTHONPATH": str(ROOT),
    }
    begun = store.one(steps.begin_start("u-claimed", Cause.START, 1, "c-1"))
    assert isinstance(begun, steps.Begin)
    right = Claim("u-claimed", begun.epoch, "local", 1, "c-1", "", Cause.START.value)
    sqs = client("sqs")
    sqs.purge_queue(QueueUrl=variables["MUSTER_QUEUE_POOL_CLAIM"])
    recorder.calls.clear()
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        worker = subprocess.Popen(
            [sys.executable, "-P", "-m", "worker"], env=variables, stdout=out, stderr=out
        )
        try:
            pool = keys.pool_idle("default")
            wait_for(lambda: bool(store.client.zcard(pool)), f"an idle worker:\n{log.read_text()}")
            sqs.send_message(QueueUrl=variables["MUSTER_QUEUE_POOL_CLAIM"], MessageBody=right.to_json())
            wait_for(lambda: '"StartLatency"' in log.read_text(), "the worker to be ready")
            assert store.client.hget(keys.active("u-claimed"), "epoch") == str(begun.epoch)
            worker.terminate()
            assert worker.wait(timeout=40) == 0, log.read_text()
        finally:
            worker.kill()
            worker.wait()
    assert "NoPermission" not in log.read_text()
    assert not store.client.exists(keys.active("u-claimed")), "a worker that drains lets go of its mark"
    calls[Role.WORKER] += recorder.calls


def test_a_claim_is_given_back(
    recorder: Recorder, client: Callable[[str], Any], calls: dict[Role, list[Call]]
) -> None:
    url = client("sqs").get_queue_url(QueueName="local-pool-claim")["QueueUrl"]
    client("sqs").send_message(QueueUrl=url, MessageBody="{}")
    recorder.calls.clear()
    delivery = SqsChannel(aws(recorder.url, "sqs"), url).receive(5)
    assert delivery
    delivery.give_back()
    calls[Role.WORKER] += recorder.calls


def test_a_broker_session_reads_its_secret_and_sends_its_fill_checks(
    recorder: Recorder, client: Callable[[str], Any], calls: dict[Role, list[Call]]
) -> None:
    secret = json.dumps({"broker": "paper", "key_id": "k", "secret": "s"})
    client("secretsmanager").create_secret(Name="muster/local/brokers/u-session", SecretString=secret)
    url = client("sqs").get_queue_url(QueueName="local-order-tasks.fifo")["QueueUrl"]
    recorder.calls.clear()
    read = secrets_reader(aws(recorder.url, "secretsmanager"))
    assert read("muster/local/brokers/u-session").key_id == "k"
    SqsChecks(lambda: aws(recorder.url, "sqs"), url)([Check("o-1", "d-1", "{}")])
    calls[Role.WORKER] += recorder.calls


def test_the_api_commands_looks_redrives_and_purges_with_its_own_rights(
    recorder: Recorder,
    client: Callable[[str], Any],
    store: Store,
    store_server: EmbeddedValkey,
    calls: dict[Role, list[Call]],
) -> None:
    settings = Settings.from_env(variables_of(client, recorder))
    sqs = client("sqs")
    recorder.calls.clear()
    own = redis.Redis(
        port=store_server.port, username=Role.API.user, password=PASSWORD, decode_responses=True
    )
    fleet = ApiFleet(Store(own), aws(recorder.url, "sqs"), settings)
    fleet.check()
    store.run(steps.begin_start("u-seen", Cause.START, 1, "c-1"), steps.index_add("u-seen"))
    assert asyncio.run(fleet.command("u-new", Action.START, idempotency_key="k-1")).command_id
    assert [worker.user_id for worker in fleet.workers(WorkerQuery()).workers] == ["u-seen"]
    assert fleet.explain("u-seen")
    assert fleet.set_pool_target(3)
    assert len(fleet.queues()) == 3
    for queue, dlq in (
        (blueprint.WORKER_CONTROL.name, settings.queue_worker_control_dlq),
        (blueprint.ORDER_TASKS.name, settings.queue_order_tasks_dlq),
    ):
        fleet.purge(queue)
        body = json.dumps({"action": "start", "user_id": "u-1"})
        for number in range(2):
            fresh = {"MessageGroupId": f"g-{number}", "MessageDeduplicationId": str(uuid.uuid4())}
            sqs.send_message(QueueUrl=dlq, MessageBody=body, **fresh)
        assert len(fleet.dead_letters(queue, 10)) == 2
        assert fleet.redrive(queue) == 2
    fleet.close()
    own.close()
    calls[Role.API] += recorder.calls


def test_the_api_keeps_jobs_and_asks_for_their_workers_with_its_own_rights(
    recorder: Recorder,
    client: Callable[[str], Any],
    store: Store,
    store_server: EmbeddedValkey,
    calls: dict[Role, list[Call]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every verb of the job routes, on the application as gunicorn builds it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "local")
    SIGNER.save(tmp_path)
    url = f"redis://{Role.API.user}:{PASSWORD}@127.0.0.1:{store_server.port}/0"
    environ = variables_of(client, recorder) | {
        "MUSTER_VALKEY_URL": url,
        "MUSTER_AUTH_ISSUER": LOCAL.issuer,
        "MUSTER_AUTH_AUDIENCE": LOCAL.audience,
        "MUSTER_AUTH_JWKS": str(tmp_path / JWKS_FILE),
    }
    recorder.calls.clear()
    with TestClient(api_main.build(environ), headers=BEARER) as api:

        def ask(method: str, path: str, **more: Any) -> Any:
            answer = api.request(method, f"/v1/pools/p{path}", **more)
            assert answer.is_success, answer.text
            return answer.json()

        ids = ask("POST", "/jobs", json={"jobs": [{"data": 1}, {"data": 2, "delay": 9}]})["ids"]
        assert recorder.calls == [Call("lambda:InvokeFunction", "local-pool_manager")]
        assert ask("POST", f"/jobs/{ids[0]}/cancel")["status"] == "cancelled"
        ask("POST", f"/jobs/{ids[0]}/resume")
        ask("POST", f"/jobs/{ids[0]}/rerun")
        assert ask("POST", "/check")["asked"]
        ask("POST", "/reap")
        ask("POST", "/redrive")
        ask("PUT", "/pin", json={"image": "job-worker:1"})
        ask("PUT", "/limit", json={"max_workers": 3})
        assert ask("GET", "/workers") == []
        assert ask("GET", f"/jobs/{ids[1]}")["data"] == 2
        assert len(ask("GET", "/jobs")["jobs"]) == 3
        assert ask("GET", "")["max_workers"] == 3
        assert [pool["pool"] for pool in api.get("/v1/pools").json()] == ["p"]
    calls[Role.API] += recorder.calls


#: What one call needs besides its own action.
IMPLIED = {"ecs:RunTask": {"ecs:TagResource", "iam:PassRole"}, "scheduler:CreateSchedule": {"iam:PassRole"}}

FUNCTIONS = [Role(function.name) for function in blueprint.FUNCTIONS]


def policy(synth: Synth, role: Role) -> dict[str, list[str]]:
    """Action -> the resources it is allowed on, as text, from the role's synthesised policies."""
    stack = {Role.WORKER: "cluster", Role.JOB_WORKER: "cluster", Role.API: "api"}.get(role, "control-plane")
    label = "Role" if role is Role.API else f"{role.value.title().replace('_', '')}Role"
    found: dict[str, list[str]] = defaultdict(list)
    for name, properties in synth.resources(stack, "AWS::IAM::Policy").items():
        if not name.startswith(f"{label}DefaultPolicy"):
            continue
        for statement in properties["PolicyDocument"]["Statement"]:
            actions = statement["Action"]
            for action in actions if isinstance(actions, list) else [actions]:
                found[action].append(json.dumps(statement["Resource"]))
    assert found, f"no policy for {role}"
    return found


@pytest.mark.parametrize("role", [*FUNCTIONS, Role.WORKER, Role.API])
def test_every_call_the_code_made_is_allowed(dev: Synth, calls: dict[Role, list[Call]], role: Role) -> None:
    allowed = policy(dev, role)
    assert calls[role], f"nothing was recorded for {role}; run the whole file"
    for call in set(calls[role]):
        for action in {call.action} | IMPLIED.get(call.action, set()):
            assert action in allowed, f"{role} calls {call} and may not"
        if call.action.startswith("sqs:"):
            part = call.subject.removeprefix("local-").removesuffix(".fifo").title().replace("-", "")
            # Logical ids go on with a hash: WorkerControl must not pass for WorkerControlDlq.
            ids = [i for i in dev.resources("queues", "AWS::SQS::Queue") if i[: -len("00000000")] == part]
            assert len(ids) == 1
            resources = " ".join(allowed[call.action])
            assert ids[0] in resources, f"{role} may {call.action}, but not on {call.subject}"


@pytest.mark.parametrize("role", [*FUNCTIONS, Role.WORKER, Role.API])
def test_nothing_is_allowed_that_no_code_calls(dev: Synth, calls: dict[Role, list[Call]], role: Role) -> None:
    called = {call.action for call in calls[role]}
    called |= {implied for action in called for implied in IMPLIED.get(action, ())}
    by_lambda = {a for grant in GRANTS[role] if grant.by is By.LAMBDA for a in grant.actions}
    unused = set(policy(dev, role)) - called - by_lambda - {"elasticache:Connect"}
    assert unused == set(), f"{role} may {sorted(unused)} and never does"
