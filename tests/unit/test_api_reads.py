"""What the API shows: one worker, pages of workers, why, the pool, and errors that say what to do."""

from __future__ import annotations

import asyncio

import pytest
from fastapi.testclient import TestClient
from moto import mock_aws

from api.fleet import Fleet
from api.source import WorkerQuery
from muster import keys, steps
from muster.clock import FakeClock
from muster.errors import Refused, TryLater
from muster.model import Cause, Phase
from muster.store import Store, command
from tests.api_stand import BEARER, app_of, begin, run_worker, settings_with_queues, sqs_client

FIELDS = {
    "user_id", "want", "phase", "via", "epoch", "task_id", "pid", "heartbeat_age_s", "since",
    "start_latency_ms", "failures", "reason", "version", "restarts", "backoff_s", "next_try_at",
}  # fmt: skip


@pytest.fixture
def store(valkey):
    return Store(valkey)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def fleet(store, clock, tmp_path):
    with mock_aws():
        sqs = sqs_client()
        yield Fleet(store, sqs, settings_with_queues(sqs), clock=clock, logs=tmp_path)


@pytest.fixture
def api(fleet):
    app = app_of(fleet)
    with TestClient(app, headers=BEARER, raise_server_exceptions=False) as client:
        yield client


def test_a_ready_worker_shows_every_field(api, store, valkey):
    issued_at = int(valkey.time()[0]) * 1000 - 2_000
    given = begin(store, "u1", issued_at_ms=issued_at)
    run_worker(store, given)
    shown = api.get("/v1/workers/u1").json()
    assert set(shown) == FIELDS
    assert shown["want"] == "running"
    assert shown["phase"] == "ready"
    assert shown["via"] == "cold"
    assert shown["epoch"] == given.epoch
    assert shown["task_id"] == "task-u1"
    assert shown["pid"] == 4711
    assert 0 <= shown["heartbeat_age_s"] < 20
    assert 2_000 <= shown["start_latency_ms"] < 30_000
    assert shown["failures"] == 0
    assert shown["reason"] is None
    assert shown["version"] == "v1"
    assert shown["since"].endswith("Z")


def test_heartbeat_age_is_what_the_lease_has_used_up(api, store, valkey):
    run_worker(store, begin(store, "u1"))
    valkey.pexpire(keys.active("u1"), 18_000)
    assert 12.0 <= api.get("/v1/workers/u1").json()["heartbeat_age_s"] < 15.0


def test_the_latency_of_a_repair_counts_from_the_repair(api, store):
    begin(store, "u1", issued_at_ms=1_000)
    store.client.delete(keys.starting("u1"))
    run_worker(store, begin(store, "u1", Cause.REPAIR))
    assert api.get("/v1/workers/u1").json()["start_latency_ms"] < 30_000


def test_each_phase_of_a_life_has_its_word(api, store, valkey):
    def phase():
        return api.get("/v1/workers/u1").json()["phase"]

    given = begin(store, "u1")
    assert phase() == "starting"
    run_worker(store, given, ready=False)
    assert phase() == "connecting"
    store.one(steps.beat_mark(given, "w-u1", "task-u1", "v1", "{}", ready=True))
    assert phase() == "ready"
    store.one(steps.begin_stop("u1", 2_000, "c2", "enough"))
    assert phase() == "draining"
    store.one(steps.drop_mark("u1", given.epoch, "w-u1", "done"))
    shown = api.get("/v1/workers/u1").json()
    assert shown["phase"] == "stopped"
    assert shown["reason"] == "enough"
    assert shown["pid"] is None
    assert shown["heartbeat_age_s"] is None


def test_a_user_nobody_asked_for_is_404_and_says_what_to_do(api):
    for path in ("/v1/workers/nobody", "/v1/workers/nobody/explain", "/v1/workers/nobody/logs"):
        answer = api.get(path)
        assert answer.status_code == 404
        assert "start it first" in answer.json()["detail"]


@pytest.fixture
def crowd(store):
    """u00..u29: every third is ready, the rest is starting."""
    for number in range(30):
        given = begin(store, f"u{number:02}", issued_at_ms=1_000)
        if number % 3 == 0:
            run_worker(store, given)


def everyone(api, **query):
    """All user ids, over all pages."""
    return [user for page in pages(api, **query) for user in page]


def pages(api, **query):
    """All user ids, page by page."""
    cursor, seen = "", []
    while cursor is not None:
        answer = api.get("/v1/workers", params={**query, "cursor": cursor})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        seen.append([worker["user_id"] for worker in page["workers"]])
        cursor = page["next_cursor"]
    return seen


@pytest.mark.usefixtures("crowd")
def test_pages_hold_every_user_once_in_order(api):
    everybody = [f"u{number:02}" for number in range(30)]
    assert everyone(api, limit=7) == everybody
    assert everyone(api, limit=7, sort="-user_id") == everybody[::-1]
    assert [len(page) for page in pages(api, limit=10)] == [10, 10, 10]
    for sort in ("phase", "-phase", "since", "-since", "failures", "start_latency_ms", "-start_latency_ms"):
        assert sorted(everyone(api, limit=4, sort=sort)) == everybody


@pytest.mark.usefixtures("crowd")
def test_workers_without_a_value_come_last_of_a_sort_by_it(api):
    ready = {f"u{number:02}" for number in range(0, 30, 3)}
    order = everyone(api, limit=4, sort="start_latency_ms")
    assert set(order[:10]) == ready


@pytest.mark.usefixtures("crowd")
def test_a_list_is_filtered_on_the_server_and_counts_everybody(api):
    page = api.get("/v1/workers", params={"phase": "ready", "limit": 3}).json()
    assert len(page["workers"]) == 3
    assert page["total"] == 10
    assert page["counts"] == {**dict.fromkeys(Phase, 0), "ready": 10, "starting": 20}
    assert everyone(api, q="U2") == [f"u{n}" for n in range(20, 30)]


@pytest.mark.usefixtures("crowd")
def test_a_page_does_not_shift_when_users_come_and_go(api, store, clock):
    first = api.get("/v1/workers", params={"limit": 10}).json()
    begin(store, "u005")
    store.one(steps.index_remove("u03"))
    clock.advance(2)
    second = api.get("/v1/workers", params={"limit": 10, "cursor": first["next_cursor"]}).json()
    assert [worker["user_id"] for worker in second["workers"]] == [f"u{n}" for n in range(10, 20)]


@pytest.mark.parametrize("cursor", ["x", "!!!", "bnVsbA", "WyJ1c2VyX2lkIixmYWxzZSw1LCJ1Il0", "é", "W" * 900])
def test_a_cursor_from_elsewhere_is_refused(api, cursor):
    answer = api.get("/v1/workers", params={"cursor": cursor})
    assert answer.status_code == 422
    assert "next_cursor" in answer.json()["detail"]


@pytest.mark.parametrize(
    "query", ["phase=happy", "sort=pid", "limit=0", "limit=1001", "limit=x", "q=" + "x" * 129]
)
def test_a_query_that_means_nothing_is_refused(api, query):
    assert api.get(f"/v1/workers?{query}").status_code == 422


def test_a_list_is_read_once_a_second_however_many_ask(fleet, store, clock):
    begin(store, "u1")
    assert fleet.workers(WorkerQuery()).total == 1
    begin(store, "u2")
    assert fleet.workers(WorkerQuery()).total == 1
    clock.advance(1.01)
    assert fleet.workers(WorkerQuery()).total == 2


def test_a_list_of_a_thousand_takes_a_few_round_trips(fleet, store, monkeypatch):
    store.run(*(steps.index_add(f"u{number}") for number in range(1_000)))
    trips = []
    real = store.run
    monkeypatch.setattr(store, "run", lambda *what: trips.append(len(what)) or real(*what))
    assert fleet.workers(WorkerQuery()).total == 1_000
    assert trips == [256, 256, 500, 500]  # how large is it, then who is there and all of them


def test_explain_tells_the_life_and_what_comes_next(api, store):
    given = begin(store, "u1")
    run_worker(store, given)
    told = api.get("/v1/workers/u1/explain").json()
    assert [line["event"] for line in told["history"]] == ["begin start", "mark taken", "ready"]
    assert told["history"][0]["why"] == "its owner asked for a worker"
    assert told["history"][0]["epoch"] == given.epoch
    assert told["next"] == {"action": "none", "why": "alive", "not_before": None, "by": None}
    assert told["worker"]["phase"] == "ready"


def test_explain_gives_the_time_of_the_next_try(api, store):
    begin(store, "u1")
    store.client.delete(keys.starting("u1"))
    begin(store, "u1", Cause.REPAIR)
    store.client.delete(keys.starting("u1"))
    told = api.get("/v1/workers/u1/explain").json()
    retry_at = int(store.client.hget(keys.desired("u1"), "retry_at"))
    assert told["worker"]["phase"] == "backing_off"
    assert told["next"]["action"] == "restart"
    assert "1 failures" in told["next"]["why"]
    from datetime import datetime

    assert datetime.fromisoformat(told["next"]["not_before"]).timestamp() * 1000 == retry_at


def test_explain_of_a_start_under_way_waits_for_its_lease(api, store):
    begin(store, "u1")
    told = api.get("/v1/workers/u1/explain").json()["next"]
    assert told["action"] == "wait"
    assert told["by"] > told["not_before"]


def test_explain_of_a_stopped_user_says_it_will_leave_the_list(api, store):
    store.one(steps.begin_stop("u1", 5, "c1"))
    assert api.get("/v1/workers/u1/explain").json()["next"]["action"] == "forget"


def test_the_pool_counts_only_the_living(api, store, valkey):
    assert api.get("/v1/pool").json() == {
        "name": "default", "target": 4, "idle": 0, "outstanding": 0, "launching": 0, "version": None,
    }  # fmt: skip
    store.one(steps.plan_pool("default", 3, "v1", "run", 50))
    for worker in ("w1", "w2"):
        store.one(steps.pool_beat("default", worker, f"t-{worker}", "v1", f"run-{worker[1]}", "h"))
    valkey.zadd(keys.pool_idle("default"), {"w2": 1})
    shown = api.get("/v1/pool").json()
    assert (shown["idle"], shown["launching"], shown["target"], shown["version"]) == (1, 1, 3, "v1")


def test_a_pools_target_is_set_and_the_manager_told(api, valkey):
    listener = valkey.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(keys.NUDGE)
    listener.get_message(timeout=5)
    assert api.put("/v1/pool", json={"target": 9}).json()["target"] == 9
    message = listener.get_message(timeout=5)
    listener.close()
    assert message["data"] == "pool_manager"
    assert api.get("/v1/pool").json()["target"] == 9
    assert valkey.hget(keys.pool_config("default"), "wanted") == "9"
    for wrong in ({"target": -1}, {"target": "9"}, {"target": 10_001}, {}, {"target": 1, "x": 2}):
        assert api.put("/v1/pool", json=wrong).status_code == 422
    assert api.get("/v1/pool").json()["target"] == 9


def test_logs_are_the_last_lines_and_then_what_came_since(api, store, tmp_path):
    run_worker(store, begin(store, "u1"))
    log = tmp_path / "task-u1.log"
    log.write_text("".join(f"line {n}\n" for n in range(10)))
    first = api.get("/v1/workers/u1/logs?lines=2").json()
    assert first["lines"] == ["line 8", "line 9"]
    with log.open("a") as more:
        more.write("line 10\nhalf")
    second = api.get("/v1/workers/u1/logs", params={"cursor": first["cursor"]}).json()
    assert second["lines"] == ["line 10"]
    with log.open("a") as more:
        more.write(" and half\n")
    third = api.get("/v1/workers/u1/logs", params={"cursor": second["cursor"]}).json()
    assert third["lines"] == ["half and half"]
    assert api.get("/v1/workers/u1/logs", params={"cursor": "task-before:999"}).json()["lines"][0] == "line 0"
    assert api.get("/v1/workers/u1/logs", params={"cursor": "nonsense"}).status_code == 422


def test_logs_kept_elsewhere_are_refused_with_where(store):
    with mock_aws():
        sqs = sqs_client()
        fleet = Fleet(store, sqs, settings_with_queues(sqs))
        run_worker(store, begin(store, "u1"))
        with pytest.raises(Refused, match="log service"):
            fleet.logs("u1", 10)


def test_health_needs_no_token_and_everything_else_does(api):
    api.headers.pop("Authorization")
    assert api.get("/healthz").json() == {"status": "ok"}
    assert api.get("/readyz").json() == {"status": "ok"}
    for path in (
        "/v1/workers",
        "/v1/events",
        "/metrics",
        "/openapi.json",
        "/nowhere",
        "/v1/pool",
        "/healthz/",
    ):
        answer = api.get(path)
        assert answer.status_code == 401, path
        assert answer.headers["content-type"] == "application/problem+json"


def test_not_ready_says_what_is_away(api, fleet, monkeypatch):
    def away():
        raise TryLater("worker-control.fifo does not answer")

    monkeypatch.setattr(fleet._queues, "check", away)
    answer = api.get("/readyz")
    assert answer.status_code == 503
    assert "worker-control.fifo" in answer.json()["detail"]
    assert api.get("/healthz").status_code == 200


def test_errors_of_the_framework_are_problems_too(api, fleet, monkeypatch):
    for answer, status in (
        (api.get("/nowhere"), 404),
        (api.delete("/v1/pool"), 405),
        (api.put("/v1/pool"), 422),
    ):
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status


def test_an_unexpected_error_shows_nothing_of_the_inside(api, fleet, monkeypatch):
    def broken():
        raise RuntimeError("the password is swordfish")

    monkeypatch.setattr(fleet, "_read_pool", broken)
    answer = api.get("/v1/pool")
    assert answer.status_code == 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert "swordfish" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_answer_carries_the_security_headers(api):
    for path in ("/healthz", "/v1/workers", "/nowhere"):
        headers = api.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]


@pytest.mark.usefixtures("crowd")
def test_metrics_are_prometheus_text(api):
    answer = api.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'muster_workers{phase="ready"} 10' in lines
    assert 'muster_workers{phase="failed"} 0' in lines
    assert 'muster_pool{pool="default",state="target"} 4' in lines
    assert 'muster_queue_messages{queue="worker-control.fifo",state="waiting"} 0' in lines
    assert any(line.startswith('muster_start_latency_seconds{via="cold",quantile="0.95"}') for line in lines)
    assert answer.text.endswith("\n")


def test_the_description_names_the_token_and_the_problems(api):
    described = api.get("/openapi.json").json()
    assert described["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert described["paths"]["/healthz"]["get"]["security"] == []
    worker = described["paths"]["/v1/workers/{user_id}"]["get"]
    assert "default" in worker["responses"]
    assert set(described["components"]["schemas"]["WorkerView"]["properties"]) == FIELDS


def test_reads_that_arrive_together_travel_together_and_fail_together(store):
    import threading

    from api.together import Together
    from muster.store import command

    calls, gate = [], threading.Event()

    class Slow:
        client = None

        def run(self, *steps):
            users = [step.args[0] for step in steps]
            calls.append(users)
            assert gate.wait(30)
            if "bad" in users:
                raise TryLater("away")
            return [user.upper() for user in users]

    async def crowd():
        together = Together(Slow())

        def one(user):
            return together.one(command(user, parse=str))

        first = asyncio.create_task(one("a"))
        while not calls:
            await asyncio.sleep(0.001)
        rest = [asyncio.create_task(one(user)) for user in "bcd"]
        gone = asyncio.create_task(one("x"))
        await asyncio.sleep(0)
        gone.cancel()
        gate.set()
        answers = await asyncio.gather(first, *rest)
        failed = await asyncio.gather(one("bad"), one("e"), return_exceptions=True)
        return answers, failed, await one("f")

    answers, failed, later = asyncio.run(crowd())
    assert answers == ["A", "B", "C", "D"]
    assert [type(error) for error in failed] == [TryLater, TryLater]
    assert later == "F"
    assert calls[:2] == [["a"], ["b", "c", "d", "x"]]


def test_a_store_that_is_away_is_503(store):
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    nobody = Store(redis.Redis(port=1, socket_connect_timeout=1, retry=Retry(NoBackoff(), 0)))
    with mock_aws():
        sqs = sqs_client()
        app = app_of(Fleet(nobody, sqs, settings_with_queues(sqs)))
        with TestClient(app, headers=BEARER, raise_server_exceptions=False) as api:
            for path in ("/v1/workers/u1", "/v1/workers", "/v1/pool", "/readyz", "/v1/events"):
                answer = api.get(path)
                assert answer.status_code == 503, path
                assert "retry-after" in answer.headers
            assert api.post("/v1/workers/u1/start").status_code == 503


def test_one_user_is_one_round_trip(fleet, store, monkeypatch):
    trips = []
    real = store.run
    monkeypatch.setattr(store, "run", lambda *what: trips.append(len(what)) or real(*what))
    asyncio.run(fleet.worker("u1"))
    assert trips == [1]
    assert store.one(command("EXISTS", keys.desired("u1"), parse=int)) == 0
