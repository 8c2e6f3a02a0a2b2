"""Who one is, what one may do, and what is on record of what one did."""

from __future__ import annotations

import io
import json
import logging

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient
from moto import mock_aws

from api import access, audit
from api.audit import Audit
from api.fleet import Fleet
from muster import keys
from muster.errors import TryLater
from muster.store import Store
from tests.api_stand import BEARER, app_of, commands_in, settings_with_queues, sqs_client


@pytest.fixture
def world(valkey):
    with mock_aws():
        sqs = sqs_client()
        yield Store(valkey), sqs, settings_with_queues(sqs)


@pytest.fixture
def api(world):
    with TestClient(app_of(Fleet(*world)), headers=BEARER, raise_server_exceptions=False) as client:
        yield client


def changes(api, **query):
    return api.get("/v1/audit", params=query).json()


def test_me_says_who_and_what_one_may(api):
    assert api.get("/v1/me").json() == {
        "subject": "operator", "role": "operator", "user_id": None, "may": ["fleet:change", "fleet:read"],
    }  # fmt: skip


def test_every_change_is_on_record_with_who_what_why_and_its_result(api):
    api.post("/v1/workers/u1/start", json={"reason": "opening bell"})
    api.put("/v1/pool", json={"target": 3}, headers={"Muster-Reason": "a quiet day"})
    api.put("/v1/pool", json={"target": -1})
    api.get("/v1/pool")
    entries = changes(api)["entries"]
    assert [(e["who"], e["role"], e["action"], e["target"], e["reason"], e["result"]) for e in entries] == [
        ("operator", "operator", "set pool", "pool", "", "422"),
        ("operator", "operator", "set pool", "pool", "a quiet day", "200"),
        ("operator", "operator", "start", "workers/u1", "opening bell", "202"),
    ]
    assert entries[0]["at"] >= entries[2]["at"]


def test_the_record_comes_in_pages_newest_first(api):
    for target in range(5):
        api.put("/v1/pool", json={"target": target}, headers={"Muster-Reason": str(target)})
    first = changes(api, limit=2)
    second = changes(api, limit=2, cursor=first["next_cursor"])
    third = changes(api, limit=2, cursor=second["next_cursor"])
    told = [entry["reason"] for page in (first, second, third) for entry in page["entries"]]
    assert told == ["4", "3", "2", "1", "0"]
    assert third["next_cursor"] is None
    for wrong in ("x", "1", "1-", "-1", "1-1-1", "(1-1", "9" * 30 + "-0"):
        assert api.get("/v1/audit", params={"cursor": wrong}).status_code == 422


def test_a_process_that_dies_between_intent_and_result_leaves_the_result_unknown(world, monkeypatch):
    async def dies(*_):
        raise SystemError("the process died")

    monkeypatch.setattr(Audit, "end", dies)
    with TestClient(app_of(Fleet(*world)), headers=BEARER) as client, pytest.raises(SystemError):
        client.post("/v1/workers/u1/start")
    monkeypatch.undo()
    with TestClient(app_of(Fleet(*world)), headers=BEARER) as client:
        (entry,) = changes(client)["entries"]
    assert (entry["action"], entry["target"], entry["result"]) == ("start", "workers/u1", "unknown")


def test_what_cannot_be_put_on_record_does_not_happen(api, world, monkeypatch):
    async def away(*_):
        raise TryLater("Valkey is away")

    monkeypatch.setattr(Audit, "begin", away)
    assert api.post("/v1/workers/u1/start").status_code == 503
    assert commands_in(*world[1:]) == []


def test_an_unexpected_error_is_a_result_too(api, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Fleet, "command", broken)
    assert api.post("/v1/workers/u1/start").status_code == 500
    assert changes(api)["entries"][0]["result"] == "500"


def test_a_reason_is_one_line_of_bounded_length(api):
    headers = {"Muster-Reason": b"a\tb\x7fc"}
    api.put("/v1/pool", json={"target": 1}, headers=headers)
    assert changes(api)["entries"][0]["reason"] == "a b c"
    long = api.put("/v1/pool", json={"target": 1}, headers={"Muster-Reason": "x" * 201})
    assert long.status_code == 422
    assert "Muster-Reason" in long.json()["detail"]


def test_the_log_has_both_halves_of_a_change_as_json(api):
    out = io.StringIO()
    handlers = list(audit.log.handlers)
    audit.write_log(out)
    try:
        api.put("/v1/pool", json={"target": 3}, headers={"Muster-Reason": 'a "quiet" day'})
    finally:
        audit.log.handlers[:] = handlers
        audit.log.setLevel(logging.NOTSET)
    intent, done = map(json.loads, out.getvalue().splitlines())
    assert intent["audit"] == "asked"
    assert (done["audit"], done["result"], done["id"]) == ("done", 200, intent["id"])
    assert done["who"] == "operator"
    assert done["reason"] == 'a "quiet" day'


def test_the_record_is_capped(api, valkey, monkeypatch):
    monkeypatch.setattr("api.audit.AUDIT_LENGTH", 100)
    for _ in range(300):
        api.put("/v1/pool", json={"target": 1})
    # The server drops whole nodes of a hundred entries.
    assert valkey.xlen(keys.AUDIT) <= 200


def test_a_route_that_does_not_say_who_may_call_it_is_refused_when_the_app_is_built():
    forgotten = APIRouter()

    @forgotten.get("/v1/secrets")
    def secrets() -> None:
        """Whoever wrote this forgot to say whose it is."""

    with pytest.raises(TypeError, match="/v1/secrets must name one guard"):
        access.check([forgotten])
