"""How much one bearer may ask, how large and how slow, and from which pages."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from fastapi.testclient import TestClient
from moto import mock_aws

from api import guard
from api.app import create_app
from api.auth import Role
from api.cors import origins_of
from api.fleet import Fleet
from api.keyset import KeySet
from api.pipe import Pipe
from api.signing import LOCAL
from api.tokens import Tokens
from muster import blueprint
from muster.blueprint import ApiLimit, Rate
from muster.errors import Refused
from muster.store import Store
from tests.api_stand import (
    BEARER,
    SIGNER,
    app_of,
    bearer,
    begin,
    commands_in,
    served,
    settings_with_queues,
    sqs_client,
)


@pytest.fixture
def world(valkey):
    with mock_aws():
        sqs = sqs_client()
        yield Store(valkey), sqs, settings_with_queues(sqs)


@pytest.fixture
def tight(monkeypatch):
    """Three reads at once, or two changes; then one in fifty seconds."""
    monkeypatch.setitem(blueprint.API_LIMITS, "user", ApiLimit(Rate(3, 0.02), Rate(2, 0.02)))


@pytest.fixture
def api(world):
    with TestClient(app_of(Fleet(*world)), raise_server_exceptions=False) as client:
        yield client


ME = bearer(Role.USER, "u1")
SOMEBODY = bearer(Role.USER, "u2")


@pytest.mark.usefixtures("tight")
def test_too_many_reads_are_429_with_a_time_to_come_back_and_nobody_else_suffers(api):
    answers = [api.get("/v1/workers/u1", headers=ME) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [404, 404, 404, 429, 429]
    assert answers[3].headers["content-type"] == "application/problem+json"
    assert answers[3].headers["retry-after"] == "50"
    assert answers[3].json()["status"] == 429
    assert answers[3].headers["x-content-type-options"] == "nosniff"
    assert api.get("/v1/workers/u2", headers=SOMEBODY).status_code == 404


@pytest.mark.usefixtures("tight")
def test_reads_and_changes_are_counted_apart_and_a_change_too_many_does_not_happen(api, world):
    for _ in range(4):
        api.get("/v1/me", headers=ME)
    answers = [api.post("/v1/workers/u1/start", headers=ME).status_code for _ in range(4)]
    assert answers == [202, 202, 429, 429]
    assert len(commands_in(*world[1:])) == 2
    assert len(api.get("/v1/audit", headers=BEARER).json()["entries"]) == 2


@pytest.mark.usefixtures("tight")
def test_two_processes_are_one_limit(world):
    with TestClient(app_of(Fleet(*world))) as one, TestClient(app_of(Fleet(*world))) as other:
        answers = [process.get("/v1/me", headers=ME).status_code for process in (one, other) * 3]
    assert answers == [200, 200, 200, 429, 429, 429]


@pytest.mark.usefixtures("tight")
def test_a_new_token_of_the_same_bearer_is_no_new_limit(api):
    answers = [api.get("/v1/me", headers=bearer(Role.USER, "u1", jti=str(n))) for n in range(4)]
    assert answers[-1].status_code == 429


def round_trips(store, monkeypatch):
    """The number of steps of every round trip from here on, by a thread or by the loop's own connection."""
    trips = []
    run, write = store.run, Pipe._write
    monkeypatch.setattr(store, "run", lambda *what: trips.append(len(what)) or run(*what))
    monkeypatch.setattr(Pipe, "_write", lambda pipe: trips.append(len(pipe._waiting)) or write(pipe))
    return trips


@pytest.mark.usefixtures("tight")
def test_who_is_known_to_be_empty_costs_the_store_nothing(api, world, monkeypatch):
    for _ in range(4):
        api.get("/v1/me", headers=ME)
    trips = round_trips(world[0], monkeypatch)
    assert [api.get("/v1/workers/u1", headers=ME).status_code for _ in range(5)] == [429] * 5
    assert trips == []


def test_a_read_and_its_limit_are_one_round_trip(api, world, monkeypatch):
    begin(world[0], "u1")
    api.get("/v1/workers/u1", headers=ME)
    trips = round_trips(world[0], monkeypatch)
    assert api.get("/v1/workers/u1", headers=ME).json()["phase"] == "starting"
    assert trips == [2]


def test_a_bucket_that_was_forgotten_was_full(valkey):
    for limit in blueprint.API_LIMITS.values():
        for rate in (limit.reads, limit.changes):
            assert rate.burst / rate.per_second < 60


def test_a_body_that_trickles_in_is_408(world, monkeypatch):
    monkeypatch.setattr(guard, "BODY_S", 0.3)
    with (
        served(Fleet(*world)) as url,
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as raw,
    ):
        lines = ["PUT /v1/pool HTTP/1.1", "Host: x", f"Authorization: {BEARER['Authorization']}"]
        lines += ["Content-Type: application/json", "Content-Length: 13", "", "{"]
        raw.sendall("\r\n".join(lines).encode())
        raw.settimeout(30)
        began = time.monotonic()
        assert b" 408 " in raw.recv(4096).split(b"\r\n")[0]
        assert time.monotonic() - began < 20


def test_somebody_without_a_token_is_answered_before_the_body_is_read(api):
    async def never():
        raise AssertionError("the body was read")

    async def ask():
        sent = []

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "path": "/v1/pool", "method": "PUT", "headers": [(b"content-length", b"9")]}
        await api.app(scope, never, send)
        return sent[0]["status"]

    assert asyncio.run(ask()) == 401


def test_other_pages_may_not_call_it_unless_their_origin_is_named(world, api):
    asked = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "GET"}
    for answer in (api.options("/v1/pool", headers=asked), api.get("/v1/pool", headers=asked | BEARER)):
        assert not [name for name in answer.headers if name.startswith("access-control")]
    fleet = Fleet(*world)
    tokens = Tokens(KeySet(SIGNER.jwks), LOCAL)
    app = create_app(fleet, fleet.together, tokens, origins=origins_of("https://console.example"))
    with TestClient(app) as opened:
        ours = asked | {"Origin": "https://console.example"}
        before = opened.options("/v1/pool", headers=ours)
        assert before.status_code == 200
        assert before.headers["access-control-allow-origin"] == "https://console.example"
        assert "access-control-allow-credentials" not in before.headers
        answer = opened.get("/v1/pool", headers=ours | BEARER)
        assert answer.headers["access-control-allow-origin"] == "https://console.example"
        assert "access-control-allow-origin" not in opened.get("/v1/pool", headers=asked | BEARER).headers


@pytest.mark.parametrize(
    "wrong", ["*", "console.example", "https://*.example", "https://a.example/x", "null"]
)
def test_an_origin_that_opens_more_than_it_says_is_refused(wrong):
    with pytest.raises(Refused, match="MUSTER_API_ORIGINS"):
        origins_of(f"https://good.example, {wrong}")
