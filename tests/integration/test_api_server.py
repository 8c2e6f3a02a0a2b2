"""The API on a real socket: real requests, a real event stream."""

from __future__ import annotations

import asyncio
import json
import threading
import time

import pytest
from moto import mock_aws

from api.fleet import Fleet
from api.routes import events
from muster import keys
from muster.commands import Action
from muster.model import Cause
from muster.store import Store
from tests.api_stand import begin, client_of, run_worker, served, settings_with_queues, sqs_client

PATIENCE_S = 30


@pytest.fixture
def store(valkey_server, valkey):
    client = valkey_server.client()
    yield Store(client)
    client.close()


@pytest.fixture
def url(store):
    with mock_aws():
        sqs = sqs_client()
        fleet = Fleet(store, sqs, settings_with_queues(sqs))
        with served(fleet) as address:
            yield address
        fleet.close()


def until(condition, what):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def listeners(valkey):
    return dict(valkey.pubsub_numsub(keys.EVENTS))[keys.EVENTS]


def read_events(lines, count):
    """The data of the next `count` events."""
    found = []
    for line in lines:
        if line.startswith("data: "):
            found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == count:
                return found
    raise AssertionError(f"the stream ended after {found}")


def test_events_arrive_as_they_happen_and_the_subscription_ends_with_the_client(url, store, valkey):
    with client_of(url) as http:
        with http.stream("GET", "/v1/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            assert next(lines) == ": listening"
            given = begin(store, "u1")
            run_worker(store, given)
            seen = read_events(lines, 3)
        assert [event["event"] for event in seen] == ["begin start", "mark taken", "ready"]
        assert {event["user_id"] for event in seen} == {"u1"}
        assert seen[0]["epoch"] == given.epoch
        assert seen[0]["at"].startswith("20")
    until(lambda: listeners(valkey) == 0, "the subscription outlived its listener")


def test_many_watchers_share_one_subscription(url, store, valkey):
    with client_of(url) as http:
        streams = [http.stream("GET", "/v1/events") for _ in range(3)]
        lines = [stream.__enter__().iter_lines() for stream in streams]
        for line in lines:
            assert next(line) == ": listening"
        assert listeners(valkey) == 1
        begin(store, "u1")
        for line in lines:
            assert read_events(line, 1)[0]["event"] == "begin start"
        for stream in streams:
            stream.__exit__(None, None, None)


def test_a_quiet_stream_is_kept_alive(url, monkeypatch):
    monkeypatch.setattr(events, "KEEP_ALIVE_S", 0.05)
    with client_of(url) as http, http.stream("GET", "/v1/events") as stream:
        lines = (line for line in stream.iter_lines() if line)
        assert [next(lines) for _ in range(3)] == [": listening", ": nothing new", ": nothing new"]


def test_closing_the_fleet_ends_its_streams(store, valkey):
    with mock_aws():
        sqs = sqs_client()
        fleet = Fleet(store, sqs, settings_with_queues(sqs))
        with (
            served(fleet) as address,
            client_of(address) as http,
            http.stream("GET", "/v1/events") as stream,
        ):
            lines = (line for line in stream.iter_lines() if line)
            assert next(lines) == ": listening"
            fleet.close()
            assert list(lines) == []
    assert listeners(valkey) == 0


def test_a_stream_ends_when_the_store_goes_so_that_nobody_trusts_it(store, tmp_path):
    from local.valkey import embedded_valkey

    with embedded_valkey(tmp_path / "valkey") as own, mock_aws():
        sqs = sqs_client()
        client = own.client()
        with (
            served(Fleet(Store(client), sqs, settings_with_queues(sqs))) as address,
            client_of(address) as http,
            http.stream("GET", "/v1/events") as stream,
        ):
            lines = stream.iter_lines()
            assert next(lines) == ": listening"
            own.kill()
            assert list(lines)[1:] == []
        client.close()


def test_a_crowd_of_requests_is_answered_right(url, store):
    for number in range(20):
        begin(store, f"u{number}")
    wrong = []

    def ask(number):
        with client_of(url) as http:
            for _ in range(25):
                answer = http.get(f"/v1/workers/u{number}").json()
                if answer["user_id"] != f"u{number}" or answer["phase"] != "starting":
                    wrong.append(answer)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert wrong == []


def test_the_order_of_commands_is_the_stores_order_whichever_process_took_them(store, monkeypatch):
    """Two API processes whose own clocks disagree still date a start before the stop that follows it."""
    with mock_aws():
        sqs = sqs_client()
        settings = settings_with_queues(sqs)
        sent = []
        for skew, action in ((3600, Action.START), (-3600, Action.STOP), (0, Action.START)):
            real = time.time
            monkeypatch.setattr(time, "time", lambda skew=skew, real=real: real() + skew)
            fleet = Fleet(store, sqs, settings)
            monkeypatch.setattr(fleet._commands, "send", sent.extend)
            asyncio.run(fleet.command("u1", action))
            monkeypatch.setattr(time, "time", real)
        moments = [command.issued_at_ms for command in sent]
        assert moments == sorted(moments)
        assert moments[-1] - moments[0] < 60_000


def test_the_environment_builds_the_app(monkeypatch, valkey_server):
    from fastapi import FastAPI

    from api import main
    from muster.errors import Refused

    auth = {
        "MUSTER_FN_POOL_MANAGER": "dev-pool_manager",
        "MUSTER_AUTH_ISSUER": "https://issuer.example",
        "MUSTER_AUTH_AUDIENCE": "muster",
        "MUSTER_AUTH_JWKS": "https://issuer.example/keys",
    }
    for missing in auth:
        with pytest.raises(Refused, match=missing):
            main.build({name: value for name, value in auth.items() if name != missing})
    with pytest.raises(Refused, match="https"):
        main.build(auth | {"MUSTER_AUTH_JWKS": "http://issuer.example/keys"})
    with pytest.raises(Refused, match="MUSTER_API_ORIGINS"):
        main.build(auth | {"MUSTER_API_ORIGINS": "*"})
    app = main.build(auth | {"MUSTER_VALKEY_URL": valkey_server.url})
    assert isinstance(app, FastAPI)


def test_a_repair_is_seen_as_one(url, store):
    begin(store, "u1")
    store.client.delete(keys.starting("u1"))
    begin(store, "u1", Cause.REPAIR)
    with client_of(url) as http:
        told = http.get("/v1/workers/u1/explain").json()
    assert told["history"][-1]["event"] == "begin repair"
    assert told["history"][-1]["why"] == "maintenance found no live worker"
