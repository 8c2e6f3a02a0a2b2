"""Messages that were given up: looked at without being taken, sent round again at their first moment."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from fastapi.testclient import TestClient
from moto import mock_aws

from api.fleet import Fleet
from muster.commands import parse_command
from muster.queues import park
from muster.store import Store
from tests.api_stand import BEARER, app_of, commands_in, settings_with_queues, sqs_client

CONTROL = "/v1/queues/worker-control.fifo/dead-letters"


@pytest.fixture
def world(valkey):
    with mock_aws():
        sqs = sqs_client()
        yield Store(valkey), sqs, settings_with_queues(sqs)


@pytest.fixture
def api(world):
    app = app_of(Fleet(*world))
    with TestClient(app, headers=BEARER, raise_server_exceptions=False) as client:
        yield client


def give_up(world, user, body, sent_at_ms=1_700_000_000_000, reason="no such action"):
    _, sqs, settings = world
    record = {
        "body": body,
        "messageId": f"m-{user}",
        "attributes": {"MessageGroupId": user, "SentTimestamp": str(sent_at_ms)},
    }
    park(sqs, settings.queue_worker_control_dlq, record, reason)


def test_every_queue_shows_what_waits_and_what_was_given_up(api, world):
    api.post("/v1/workers/u1/start")
    give_up(world, "u2", "x")
    queues = {queue.pop("name"): queue for queue in api.get("/v1/queues").json()}
    assert queues == {
        "worker-control.fifo": {"depth": 1, "in_flight": 0, "dead_letter": 1},
        "order-tasks.fifo": {"depth": 0, "in_flight": 0, "dead_letter": 0},
        "pool-claim": {"depth": 0, "in_flight": 0, "dead_letter": None},
    }


def test_looking_takes_nothing(api, world):
    for number in range(12):
        give_up(world, f"u{number}", f'{{"n":{number}}}')
    for _ in range(2):
        letters = api.get(CONTROL).json()
        assert sorted(letter["group"] for letter in letters) == sorted(f"u{n}" for n in range(12))
    assert letters[0]["reason"] == "no such action"
    assert letters[0]["sent_at"] == "2023-11-14T22:13:20Z"
    one = api.get(f"{CONTROL}/{letters[3]['message_id']}").json()
    assert one == letters[3]
    assert len(api.get(CONTROL, params={"limit": 5}).json()) == 5


def test_a_dead_letter_queue_can_be_named_itself(api, world):
    give_up(world, "u1", "x")
    assert len(api.get("/v1/queues/worker-control-dlq.fifo/dead-letters").json()) == 1


def test_a_redriven_command_keeps_its_first_moment(api, world):
    give_up(world, "u1", '{"action":"start","user_id":"u1"}', sent_at_ms=1_700_000_000_000)
    give_up(world, "u2", '{"action":"stop","user_id":"u2","issued_at":"2024-01-01T00:00:00Z"}')
    assert api.post(f"{CONTROL}/redrive").json() == {"redriven": 2}
    _, sqs, settings = world
    bodies = commands_in(sqs, settings)
    sent = {
        c.user_id: c for c in (parse_command(b, message_id="m", sent_at=datetime.now(UTC)) for b in bodies)
    }
    assert sent["u1"].issued_at_ms == 1_700_000_000_000
    assert sent["u2"].issued_at == datetime(2024, 1, 1, tzinfo=UTC)
    assert api.get(CONTROL).json() == []


def test_what_is_no_command_goes_round_as_it_is(api, world):
    for user, body in (("u1", "not json"), ("u2", "[1]")):
        give_up(world, user, body)
    assert api.post(f"{CONTROL}/redrive").json() == {"redriven": 2}
    assert sorted(commands_in(*world[1:])) == ["[1]", "not json"]


def test_one_message_is_redriven_and_the_others_stay(api, world):
    for number in range(3):
        give_up(world, f"u{number}", json.dumps({"action": "start", "user_id": f"u{number}"}))
    letter = api.get(CONTROL).json()[1]
    assert api.post(f"{CONTROL}/{letter['message_id']}/redrive").json() == {"redriven": 1}
    assert len(api.get(CONTROL).json()) == 2
    (sent,) = commands_in(*world[1:])
    assert json.loads(sent)["user_id"] == letter["group"]


def test_a_purge_throws_them_away(api, world):
    give_up(world, "u1", "x")
    assert api.delete(CONTROL).json() == {"purged": 1}
    assert api.get(CONTROL).json() == []


@pytest.mark.parametrize("queue", ["nothing", "pool-claim", "nothing.fifo"])
def test_a_queue_without_dead_letters_is_404_and_names_those_that_have(api, queue):
    for answer in (
        api.get(f"/v1/queues/{queue}/dead-letters"),
        api.post(f"/v1/queues/{queue}/dead-letters/redrive"),
        api.delete(f"/v1/queues/{queue}/dead-letters"),
    ):
        assert answer.status_code == 404
        assert "worker-control.fifo" in answer.json()["detail"]


def test_a_message_that_is_not_there_is_404(api):
    assert api.get(f"{CONTROL}/0123-abc").status_code == 404
    assert api.post(f"{CONTROL}/0123-abc/redrive").status_code == 404
