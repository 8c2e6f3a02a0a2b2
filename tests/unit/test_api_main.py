"""The API as it is deployed: built from its environment, with job pools whose workers others launch."""

from __future__ import annotations

import json

import pytest
from botocore.exceptions import ClientError
from fastapi.testclient import TestClient
from moto import mock_aws

from api import main
from api.signing import JWKS_FILE, LOCAL
from local.driver import until
from muster.clients import aws_client
from muster.clock import SystemClock
from muster.errors import Refused
from muster.jobs import NewJob, WorkerRegistration
from muster.jobs.connection import on_store
from muster.jobs.model import STALE_AFTER
from muster.store import Store
from tests.api_stand import BEARER, SIGNER, settings_with_queues, sqs_client


class Functions:
    """Lambda as the API sees it: keeps what it is asked, or refuses."""

    def __init__(self):
        self.events = []
        self.refuses = False

    def invoke(self, *, FunctionName, InvocationType, Payload):
        if self.refuses:
            raise ClientError({"Error": {"Code": "TooManyRequestsException", "Message": "slow"}}, "Invoke")
        assert (FunctionName, InvocationType) == ("dev-pool_manager", "Event")
        self.events.append(json.loads(Payload))


@pytest.fixture
def functions(monkeypatch):
    made = Functions()

    def clients(settings, service, **options):
        return made if service == "lambda" else aws_client(settings, service, **options)

    monkeypatch.setattr(main, "aws_client", clients)
    return made


@pytest.fixture
def environ(valkey_server, tmp_path):
    with mock_aws():
        queues = settings_with_queues(sqs_client())
        SIGNER.save(tmp_path)
        yield {
            "MUSTER_REGION": "us-east-1",
            "MUSTER_VALKEY_URL": f"redis://127.0.0.1:{valkey_server.port}/0",
            "MUSTER_QUEUE_WORKER_CONTROL": queues.queue_worker_control,
            "MUSTER_AUTH_ISSUER": LOCAL.issuer,
            "MUSTER_AUTH_AUDIENCE": LOCAL.audience,
            "MUSTER_AUTH_JWKS": str(tmp_path / JWKS_FILE),
            "MUSTER_FN_POOL_MANAGER": "dev-pool_manager",
        }


@pytest.fixture
def client(environ, functions, valkey):
    with TestClient(main.build(environ), headers=BEARER) as made:
        yield made


@pytest.fixture
def jobs(valkey):
    return on_store(Store(valkey), "redis://")


def test_a_push_is_kept_in_the_deployments_store_and_pool_manager_is_asked(client, functions, jobs):
    answer = client.post("/v1/pools/p/jobs", json={"data": {"n": 1}})
    assert answer.status_code == 202, answer.text
    assert jobs.work.pool("p").get(answer.json()["ids"][0]).data == {"n": 1}
    assert functions.events == [{"source": "muster.jobs", "pool_id": "p"}]
    assert client.get("/v1/pools/p").json()["workers"] == 0  # the API itself launches nobody


@pytest.mark.parametrize("verb", ["resume", "rerun"])
def test_a_job_that_comes_back_is_asked_for_too(client, functions, jobs, verb):
    pool = jobs.work.pool("p")
    job_id = pool.push(1)
    pool.cancel(job_id)
    assert client.post(f"/v1/pools/p/jobs/{job_id}/{verb}").is_success
    assert functions.events == [{"source": "muster.jobs", "pool_id": "p"}]


def test_nobody_is_asked_while_enough_workers_live(client, functions, jobs):
    jobs.registration.register(WorkerRegistration("w1", pool="p"))
    client.post("/v1/pools/p/jobs", json={"data": 1})
    assert functions.events == []
    client.post("/v1/pools/p/jobs", json={"data": 2})
    assert len(functions.events) == 1


def test_a_push_is_accepted_when_pool_manager_cannot_be_asked(client, functions, jobs):
    functions.refuses = True
    assert client.post("/v1/pools/p/jobs", json={"data": 1}).status_code == 202
    assert jobs.work.pool("p").size() == 1


def test_who_asks_for_a_check_is_told_that_it_was_not_passed_on(client, functions, jobs):
    functions.refuses = True
    jobs.work.pool("p").push(1)
    answer = client.post("/v1/pools/p/check")
    assert answer.status_code == 503
    assert "dev-pool_manager could not be invoked" in answer.json()["detail"]
    assert "Retry-After" in answer.headers


def test_a_check_reaps_here_and_leaves_the_launching_to_pool_manager(client, functions, valkey):
    class Earlier(SystemClock):
        def now(self):
            return super().now() - 10 * STALE_AFTER.total_seconds()

    before = on_store(Store(valkey), "redis://", Earlier())
    before.registration.register(WorkerRegistration("w1", pool="p"))
    before.registration.heartbeat("w1")
    work = before.work.pool("p")
    work.push_many([NewJob(1), NewJob(2)])
    assert work.claim("w1") is not None
    done = client.post("/v1/pools/p/check").json()
    assert (done["lost"], done["released"]) == (["w1"], 1)
    assert (done["wanted"], done["launched"], done["asked"]) == (2, [], True)
    assert functions.events == [{"source": "muster.jobs", "pool_id": "p"}]


def test_a_pool_can_be_pinned_to_a_task_definition(client):
    answer = client.put("/v1/pools/p/pin", json={"image": "dev-job-worker:7"})
    assert answer.json() == {"pool": "p", "pin": "dev-job-worker:7"}


def test_without_the_name_of_pool_manager_nothing_is_served(environ):
    del environ["MUSTER_FN_POOL_MANAGER"]
    with pytest.raises(Refused, match="MUSTER_FN_POOL_MANAGER is not set"):
        main.build(environ)


@pytest.fixture
def triggers(environ, tmp_path):
    """Writes the deployment's triggers."""

    def write(*entries):
        path = tmp_path / "triggers.yml"
        path.write_text(json.dumps({"triggers": [{"name": f"t{n}", **e} for n, e in enumerate(entries)]}))
        environ["MUSTER_JOB_TRIGGERS"] = str(path)

    return write


def test_the_triggers_of_the_deployment_take_the_place_of_the_check(
    environ, functions, valkey, jobs, triggers
):
    added = {"on": "work_added"}
    triggers({"type": "lambda", **added, "input": {"pool_id": "cloud"}}, {"type": "in-loop", **added})
    with TestClient(main.build(environ), headers=BEARER) as client:
        jobs.registration.register(WorkerRegistration("w1", pool="cloud"))
        jobs.registration.register(WorkerRegistration("w2", pool="here"))
        # The function is asked whatever the API sees; a check in this process sees that one worker is enough.
        for pool in ("cloud", "here"):
            assert client.post(f"/v1/pools/{pool}/jobs", json={"data": 1}).status_code == 202
        assert functions.events == [{"source": "muster.jobs", "pool_id": "cloud"}]
        client.post("/v1/pools/here/jobs", json={"data": 2})
        until(lambda: len(functions.events) == 2, "the check has asked")
        assert functions.events[1] == {"source": "muster.jobs", "pool_id": "here"}


def test_with_triggers_for_other_pools_only_nobody_is_asked_until_the_next_check(
    environ, functions, valkey, jobs, triggers
):
    triggers({"type": "lambda", "on": "work_added", "input": {"pool_id": "other"}})
    with TestClient(main.build(environ), headers=BEARER) as client:
        client.post("/v1/pools/p/jobs", json={"data": 1})
        assert functions.events == []
        assert client.post("/v1/pools/p/check").json()["asked"] is True


@pytest.mark.parametrize(
    ("entry", "hint"),
    [
        ({"type": "subprocess", "on": "work_added"}, "t0: the deployed API starts no processes; use lambda"),
        (
            {"type": "lambda", "on": "work_added", "function": "mine"},
            "t0: the API's role may invoke pool_manager",
        ),
        ({"type": "lambda"}, "t0: without 'on: work_added'"),
    ],
)
def test_triggers_that_the_deployed_api_cannot_obey_are_refused_before_it_serves(
    environ, triggers, entry, hint
):
    triggers(entry)
    with pytest.raises(Refused, match=hint):
        main.build(environ)
