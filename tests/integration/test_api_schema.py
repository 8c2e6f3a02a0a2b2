"""The API against its own description: whatever is sent, no answer is a server error, and every answer is as
`/openapi.json` says. Valkey is real; the queues are moto's."""

from __future__ import annotations

from collections import Counter

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from moto import mock_aws
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.fleet import Fleet
from api.orders import OrderDesk
from api.routes import jobs, orders
from muster.jobs import WorkerRegistration, connect
from muster.store import Store
from tests.api_stand import BEARER, app_of, begin, run_worker, settings_with_queues, sqs_client

#: Of each operation: well-formed ones and broken ones.
EXAMPLES = 20
CHECKS = (
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
)  # fmt: skip


@pytest.fixture(scope="module")
def app(valkey_server):
    store = Store(valkey_server.client())
    store.client.flushall()
    run_worker(store, begin(store, "0"))
    with mock_aws():
        sqs = sqs_client()
        fleet = Fleet(store, sqs, settings_with_queues(sqs))

        async def brief(idle_s):
            yield None

        fleet.events = brief  # the real one never ends
        work = connect("memory://")
        work.work.pool("0").push(1)
        made = app_of(fleet, orders.router(OrderDesk(store)), jobs.router(work, lambda *_: None))
        made.state.work = work
        yield made
    store.client.close()


def test_every_answer_is_as_described(app):
    described = schemathesis.openapi.from_asgi("/openapi.json", app, headers=BEARER)
    operations = [found.ok() for found in described.get_all_operations()]
    assert len(operations) > 30
    seen: Counter[int] = Counter()
    for operation in operations:

        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy() | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
        def ask(case):
            seen[case.call_and_validate(headers=BEARER, checks=CHECKS).status_code] += 1

        ask()
    # Both kinds got through to where they were meant to.
    assert {200, 202, 404, 422} <= set(seen), seen
    assert seen[403] == seen[429] == 0, seen


def test_every_answer_about_a_pool_is_as_described_field_by_field(app):
    """Jobs in every state and workers of every kind: what generated requests hardly ever meet."""
    described = schemathesis.openapi.from_asgi("/openapi.json", app, headers=BEARER)
    operations = {
        (found.ok().method.upper(), found.ok().path): found.ok() for found in described.get_all_operations()
    }
    asked = set()

    def ask(method, path, job_id="", body=None, **query):
        asked.add((method, path))
        case = operations[method, path].Case(
            path_parameters={"pool": "known", "job_id": job_id} if job_id else {"pool": "known"},
            query=query,
            **({} if body is None else {"body": body, "media_type": "application/json"}),
        )
        return case.call_and_validate(headers=BEARER, checks=CHECKS)

    pool, workers = app.state.work.work.pool("known"), app.state.work.registration
    one = "/v1/pools/{pool}/jobs/{job_id}"
    batch = {"jobs": [{"data": {"n": n}} for n in range(4)]}
    ids = ask("POST", "/v1/pools/{pool}/jobs", body=batch).json()["ids"]
    job = {"data": [1, None], "type": "backtest", "priority": 5, "dedup": "k", "time_limit": 9.5}
    (full,) = ask("POST", "/v1/pools/{pool}/jobs", body={**job, "max_retries": 1}).json()["ids"]
    running = pool.claim("w")
    assert running.id == full
    pool.report(full, running.token, {"fraction": 0.5, "note": "half way"}, {"tick": 7})
    pool.complete(pool.claim("w"), {"curve": [1.0, 2]})
    workers.register(WorkerRegistration("w", host="h", pid=7, capabilities=("gpu",), pool="known"))
    workers.heartbeat("w", {"current_task_id": full, "memory_mb": 12.5})
    claimed = ask("GET", one, full).json()
    assert (claimed["status"], claimed["token"], claimed["progress"]["note"]) == ("claimed", 1, "half way")
    pool.fail(running, "broken")
    assert ask("GET", one, full).json()["status"] == "poisoned"
    assert ask("GET", one, ids[0]).json()["result"] == {"curve": [1.0, 2]}
    assert ask("POST", one + "/cancel", ids[1]).json() == {"id": ids[1], "status": "cancelled"}
    assert ask("POST", one + "/resume", ids[1]).json()["status"] == "pending"
    assert ask("POST", one + "/rerun", ids[0]).json()["parent"] == ids[0]
    assert ask("GET", one + "/events", ids[0]).text.startswith("event: progress")
    assert ask("POST", "/v1/pools/{pool}/redrive").json()["ids"] == [full]
    assert ask("GET", "/v1/pools/{pool}/jobs", limit=2).json()["next"]
    assert ask("GET", "/v1/pools/{pool}/jobs", status="done").json()["next"] is None
    assert ask("GET", "/v1/pools/{pool}").json()["max_workers"] == 10
    assert {row["pool"] for row in ask("GET", "/v1/pools").json()} >= {"0", "known"}
    assert ask("PUT", "/v1/pools/{pool}/limit", body={"max_workers": 7}).json()["max_workers"] == 7
    assert ask("PUT", "/v1/pools/{pool}/pin", body={"image": "dev:7"}).json()["pin"] == "dev:7"
    assert ask("POST", "/v1/pools/{pool}/check", dry_run="true").json().keys() >= {"would_launch"}
    assert ask("POST", "/v1/pools/{pool}/check").json()["asked"] is False
    assert ask("POST", "/v1/pools/{pool}/reap", dry_run="true").json().keys() == {"pool", "would_lose"}
    assert ask("POST", "/v1/pools/{pool}/reap", stale_after=0).json().keys() >= {"lost", "trimmed"}
    rows = ask("GET", "/v1/pools/{pool}/workers").json()
    assert {row["current_task_id"] for row in rows} == {full, None}
    assert asked == {named for named in operations if named[1].startswith("/v1/pools")}


def test_nothing_the_api_says_about_pools_is_left_open():
    """An answer described as just any object would prove nothing, whatever came."""
    described = FastAPI()
    described.include_router(jobs.router(connect("memory://"), lambda *_: None))
    document = described.openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for code, answer in operation["responses"].items():
                if code == "422" or path.endswith("/events"):
                    continue
                for named in _schemas(answer["content"]["application/json"]["schema"], document):
                    assert named["properties"], (method, path)
                    assert set(named["required"]) == set(named["properties"]), (method, path)


def _schemas(schema, document):
    """The objects that a schema may be, by name."""
    for choice in schema.get("anyOf", [schema.get("items", schema)]):
        yield document["components"]["schemas"][choice["$ref"].rpartition("/")[2]]
