"""The product's API over a supervisor's workers: same routes, same errors, another source."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from api.auth import Role
from api.signing import KEY_FILE, Signer
from muster.errors import Refused
from muster.store import Store
from supervisor.api import SupervisorSource
from supervisor.server import application, listen
from tests.integration.test_supervisor_rounds import KEYS, World


@pytest.fixture
def world(tmp_path, valkey) -> World:
    world = World(tmp_path / "workers.yml", valkey)
    world.write("A", "B")
    world.supervisor.begin()
    world.pass_time(30, beating=("A", "B"))
    return world


@pytest.fixture
def api(world, valkey, tmp_path):
    store = Store(valkey)
    source = SupervisorSource(world.fleet, store, KEYS, world.clock)
    app = application(source, store, tmp_path / "new")
    operator = {"Authorization": f"Bearer {Signer.read(tmp_path / 'new').token(Role.OPERATOR)}"}
    with TestClient(app, headers=operator) as client:
        yield client


def test_the_state_of_one_and_of_all(api, world):
    one = api.get("/v1/workers/A").json()
    assert (one["user_id"], one["phase"], one["want"]) == ("A", "ready", "running")
    assert one["pid"] == world.process("A").pid
    assert 0 <= one["heartbeat_age_s"] < 45
    listed = api.get("/v1/workers").json()
    assert [worker["user_id"] for worker in listed["workers"]] == ["A", "B"]


def test_a_worker_that_crashed_shows_why_its_backoff_and_its_next_try(api, world):
    world.process("A").ended = "exited with 3"
    world.supervisor.step()
    one = api.get("/v1/workers/A").json()
    assert (one["phase"], one["failures"], one["pid"]) == ("backing_off", 1, None)
    assert "last exit: exited with 3" in one["reason"]
    assert "next try in 20 s, restarts so far: 0" in one["reason"]
    told = api.get("/v1/workers/A/explain").json()
    assert told["next"]["action"] == "restart"
    assert told["next"]["why"] == "backing off for 20 s"
    assert [entry["event"] for entry in told["history"]] == ["started", "exited"]


def test_stop_start_and_restart(api, world):
    assert api.post("/v1/workers/A/stop").status_code == 202
    world.supervisor.step()
    world.supervisor.step()
    assert api.get("/v1/workers/A").json()["phase"] == "stopped"
    refused = api.post("/v1/workers/A/restart")
    assert refused.status_code == 409
    assert refused.headers["content-type"] == "application/problem+json"
    assert "start it instead" in refused.json()["detail"]
    assert api.post("/v1/workers/A/start").status_code == 202
    world.supervisor.step()
    assert api.post("/v1/workers/B/restart").status_code == 202
    world.pass_time(1)
    assert (world.tries("A"), world.tries("B")) == (2, 2)


def test_a_repeated_key_is_the_same_command_and_never_overtakes(api, world):
    key = {"Idempotency-Key": "once"}
    first = api.post("/v1/workers/A/stop", headers=key).json()
    api.post("/v1/workers/A/start")
    again = api.post("/v1/workers/A/stop", headers=key).json()
    assert again["command_id"] == first["command_id"]
    world.pass_time(1)
    assert api.get("/v1/workers/A").json()["want"] == "running"
    assert api.post("/v1/workers/A/restart", headers=key).status_code == 409


def test_one_command_for_all_who_match_is_carried_out_for_each(api, world):
    seen = api.get("/v1/bulk").json()
    assert seen["some"] == ["A", "B"]
    body = {"selection": seen["selection"], "reason": "the host is serviced"}
    told = api.post("/v1/bulk/stop", json=body, headers={"Idempotency-Key": "all"})
    assert (told.status_code, told.json()["users"]) == (202, 2)
    world.pass_time(1)
    assert {worker["want"] for worker in api.get("/v1/workers").json()["workers"]} == {"stopped"}


def test_a_reload_and_a_broken_file(api, world):
    world.write("A", "C")
    assert api.post("/v1/reload").status_code == 200
    world.pass_time(1)
    assert world.tries("C") == 1
    world.file.write_text("workers: 5")
    broken = api.post("/v1/reload")
    assert broken.status_code == 409
    assert "is not valid: workers" in broken.json()["detail"]


def test_what_one_host_does_not_have_is_refused_with_a_reason(api):
    assert api.get("/v1/queues").json() == []
    assert api.get("/v1/pool").json()["target"] == 0
    assert api.put("/v1/pool", json={"target": 3}).status_code == 409
    assert api.post("/v1/workers/Z/start").status_code == 404
    assert api.get("/v1/workers/Z").status_code == 404
    assert api.get("/readyz").status_code == 200


def test_nobody_without_the_token(api):
    for method, path in (("GET", "/v1/workers"), ("POST", "/v1/reload")):
        assert api.request(method, path, headers={"Authorization": "Bearer wrong"}).status_code == 401


@pytest.mark.anyio
async def test_a_watcher_hears_what_happens(world, valkey):
    source = SupervisorSource(world.fleet, Store(valkey), KEYS, world.clock)
    events = source.events(idle_s=30)
    assert await anext(events) is None
    world.process("B").ended = "exited with 9"
    world.supervisor.step()
    heard = await anext(events)
    assert (heard.user_id, heard.event, heard.detail) == ("B", "exited", "exited with 9")
    await events.aclose()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_the_key_is_made_once_and_only_for_its_owner(api, world, valkey, tmp_path):
    assert api.get("/v1/me").json()["role"] == "operator"
    key = tmp_path / "new" / KEY_FILE
    assert key.stat().st_mode & 0o777 == 0o600
    before = key.read_bytes()
    application(
        SupervisorSource(world.fleet, Store(valkey), KEYS, world.clock), Store(valkey), tmp_path / "new"
    )
    assert key.read_bytes() == before


def test_a_taken_port_is_refused_with_what_to_do():
    with listen(0) as taken, pytest.raises(Refused, match="choose another with --api-port"):
        listen(taken.getsockname()[1])
