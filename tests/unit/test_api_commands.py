"""Commands through the API: accepted once, in order, never lost; bad ones refused with a reason."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from fastapi.testclient import TestClient
from moto import mock_aws

from api.fleet import Fleet
from muster import keys
from muster.commands import Action, parse_command
from muster.errors import TryLater
from muster.store import Store
from tests.api_stand import BEARER, TOKEN, app_of, commands_in, settings_with_queues, sqs_client


@pytest.fixture
def world(valkey):
    with mock_aws():
        sqs = sqs_client()
        settings = settings_with_queues(sqs)
        yield Store(valkey), sqs, settings


@pytest.fixture
def fleet(world):
    return Fleet(*world)


@pytest.fixture
def api(fleet):
    app = app_of(fleet)
    with TestClient(app, headers=BEARER, raise_server_exceptions=False) as client:
        yield client


def sent(world):
    _, sqs, settings = world
    return [json.loads(body) for body in commands_in(sqs, settings)]


def test_a_command_is_accepted_with_an_id_and_lies_in_its_users_group(api, world):
    answer = api.post("/v1/workers/u1/start", json={"credentials_ref": "broker/u1", "reason": "opening bell"})
    assert answer.status_code == 202
    (body,) = sent(world)
    assert answer.json() == {"command_id": body["command_id"], "repeated": False}
    assert body["action"] == "start"
    assert body["user_id"] == "u1"
    assert body["credentials_ref"] == "broker/u1"
    assert body["reason"] == "opening bell"


def test_every_action_needs_no_body(api, world):
    for action in Action:
        assert api.post(f"/v1/workers/u1/{action.value}").status_code == 202
    assert [body["action"] for body in sent(world)] == ["start", "stop", "restart"]


def test_what_is_sent_is_what_the_handler_takes_and_its_time_is_the_stores(api, world, valkey):
    before_s, _ = valkey.time()
    api.post("/v1/workers/u1/start")
    after_s, _ = valkey.time()
    body = json.dumps(sent(world)[0])
    from datetime import UTC, datetime

    command = parse_command(body, message_id="m", sent_at=datetime.now(UTC))
    assert before_s * 1000 <= command.issued_at_ms <= after_s * 1000 + 999


def test_pollers_of_this_machine_are_told(api, valkey):
    listener = valkey.pubsub(ignore_subscribe_messages=True)
    listener.subscribe(keys.NUDGE)
    listener.get_message(timeout=5)
    api.post("/v1/workers/u1/start")
    message = listener.get_message(timeout=5)
    listener.close()
    assert message["data"] == "worker-control.fifo"


def test_a_repeat_with_the_same_key_is_the_same_command_at_the_same_moment(api, world):
    first = api.post("/v1/workers/u1/start", headers={"Idempotency-Key": "k1"}).json()
    one = sent(world)[0]
    again = api.post("/v1/workers/u1/start", headers={"Idempotency-Key": "k1"}).json()
    assert again == {"command_id": first["command_id"], "repeated": True}
    # moto forgets deduplication with the message, as SQS does after five minutes: the copy shows what went.
    assert all(copy == one for copy in sent(world))


def test_a_key_belongs_to_its_user_and_to_one_command(api, world):
    first = api.post("/v1/workers/u1/start", headers={"Idempotency-Key": "k1"}).json()
    other = api.post("/v1/workers/u2/start", headers={"Idempotency-Key": "k1"}).json()
    assert other["command_id"] != first["command_id"]
    clash = api.post("/v1/workers/u1/stop", headers={"Idempotency-Key": "k1"})
    assert clash.status_code == 409
    assert "new key" in clash.json()["detail"]
    assert [body["action"] for body in sent(world)] == ["start", "start"]


def test_without_a_key_every_request_is_a_new_command_and_nothing_is_remembered(api, valkey):
    ids = {api.post("/v1/workers/u1/start").json()["command_id"] for _ in range(3)}
    assert len(ids) == 3
    assert valkey.keys("api:idempotency*") == []


def test_a_key_is_forgotten_after_a_day(api, valkey):
    api.post("/v1/workers/u1/start", headers={"Idempotency-Key": "k1"})
    (key,) = valkey.keys("api:idempotency*")
    assert 86_390 <= valkey.ttl(key) <= 86_400


class DiesOnce:
    """An SQS client whose process dies before (or after) the first send."""

    def __init__(self, sqs, *, after_sending):
        self._sqs, self._after, self._died = sqs, after_sending, False

    def send_message_batch(self, **what):
        if not self._died:
            self._died = True
            if self._after:
                self._sqs.send_message_batch(**what)
            raise KeyboardInterrupt("the process died")
        return self._sqs.send_message_batch(**what)


def test_a_crash_between_remembering_and_sending_is_healed_by_the_repeat(world):
    store, sqs, settings = world
    broken = Fleet(store, DiesOnce(sqs, after_sending=False), settings)
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(broken.command("u1", Action.START, idempotency_key="k1"))
    assert sent(world) == []
    remembered = json.loads(store.client.get(store.client.keys("api:idempotency*")[0]).partition(" ")[2])
    # Somebody stops the user meanwhile; the repeat must not overtake that.
    asyncio.run(Fleet(store, sqs, settings).command("u1", Action.STOP))
    healed = asyncio.run(Fleet(store, sqs, settings).command("u1", Action.START, idempotency_key="k1"))
    assert healed.repeated
    assert healed.command_id == remembered["command_id"]
    stop, start = sent(world)
    assert start["command_id"] == healed.command_id
    assert start["issued_at"] <= stop["issued_at"]


def test_a_crash_after_sending_makes_the_repeat_the_same_message(world):
    store, sqs, settings = world
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(
            Fleet(store, DiesOnce(sqs, after_sending=True), settings).command(
                "u1", Action.START, idempotency_key="k1"
            )
        )
    repeat = asyncio.run(Fleet(store, sqs, settings).command("u1", Action.START, idempotency_key="k1"))
    # The queue has both sends within five minutes under one deduplication id: one message.
    (only,) = sent(world)
    assert only["command_id"] == repeat.command_id


def test_a_queue_that_is_away_is_503_with_a_time_to_come_back(api, fleet, monkeypatch):
    def away(commands):
        raise TryLater("worker-control.fifo took no command; send again")

    monkeypatch.setattr(fleet._commands, "send", away)
    answer = api.post("/v1/workers/u1/start")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert "worker-control.fifo" in answer.json()["detail"]


def test_a_nudge_that_fails_does_not_fail_an_accepted_command(world, monkeypatch):
    store, sqs, settings = world
    fleet = Fleet(store, sqs, settings)
    real = store.one

    def one(step):
        if step.args[:1] == ("PUBLISH",):
            raise TryLater("Valkey is away")
        return real(step)

    monkeypatch.setattr(store, "one", one)
    assert asyncio.run(fleet.command("u1", Action.START)).command_id == sent(world)[0]["command_id"]


@pytest.mark.parametrize(
    "user",
    [
        "..%2Fetc%2Fpasswd",
        "a%2Fb",
        "%00",
        "u1%00",
        "%C3%BC",
        "u%201",
        "u1%0A",
        "x" * 129,
        "%F0%9F%98%80",
        "a{b}",
    ],
)
def test_user_ids_that_could_be_mistaken_for_something_else_are_refused(api, world, user):
    answer = api.post(f"/v1/workers/{user}/start")
    assert 400 <= answer.status_code < 500
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]
    assert sent(world) == []


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("not json", "JSON"),
        ("[1]", "body"),
        ('{"reason": 5}', "reason"),
        ('{"reason": "a", "surprise": 1}', "surprise"),
        ('{"credentials_ref": "a b"}', "credentials_ref"),
        ('{"credentials_ref": "\\u0000"}', "credentials_ref"),
        ('{"reason": "' + "x" * 201 + '"}', "reason"),
        ("{" * 2000, "JSON"),
    ],
)
def test_a_malformed_body_is_refused_with_the_field_that_is_wrong(api, world, body, word):
    answer = api.post("/v1/workers/u1/start", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert word in answer.json()["detail"]
    assert sent(world) == []


def test_a_body_of_a_megabyte_is_413_whether_it_says_its_length_or_not(api, world):
    big = b'{"reason": "' + b"x" * 1_000_000 + b'"}'
    headers = {"Content-Type": "application/json"}
    assert api.post("/v1/workers/u1/start", content=big, headers=headers).status_code == 413
    chunks = (big[i : i + 10_000] for i in range(0, len(big), 10_000))
    answer = api.post("/v1/workers/u1/start", content=chunks, headers=headers)
    assert answer.status_code == 413
    assert "65536" in answer.json()["detail"]
    assert sent(world) == []


def test_an_unknown_action_is_refused(api, world):
    answer = api.post("/v1/workers/u1/destroy")
    assert answer.status_code == 422
    assert "start" in answer.json()["detail"]


def test_nothing_changes_by_get(api, world):
    for path in ("start", "stop", "restart"):
        assert api.get(f"/v1/workers/u1/{path}").status_code in (404, 405)
    assert sent(world) == []


def test_the_token_is_compared_whole(api):
    for header in ("", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", "Bearer \xe9"):
        raw = httpx.Headers({"Authorization": header.encode("latin-1")})
        answer = api.post("/v1/workers/u1/start", headers=raw)
        assert answer.status_code == 401, header
        assert answer.headers["www-authenticate"].startswith("Bearer")
