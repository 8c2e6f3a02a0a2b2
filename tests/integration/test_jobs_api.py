"""The job routes over HTTP, and the webhook trigger against a real server."""

from __future__ import annotations

import json
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from api.access import of_the_fleet
from api.problems import install
from api.routes.jobs import router
from cli.jobs import app as cli_jobs
from local.valkey import free_port
from muster.jobs import JobStatus, connect
from muster.jobs.capacity import ProcessLauncher
from muster.jobs.triggers import Effects, Trigger, TriggerType, fire


@pytest.fixture
def jobs():
    return connect("memory://")


@pytest.fixture
def launches():
    return []


@pytest.fixture
def app(jobs, launches):
    app = FastAPI()
    app.include_router(router(jobs, lambda *launch: launches.append(launch)))
    install(app)
    app.dependency_overrides[of_the_fleet] = lambda: None  # who may is not what is tested here
    return app


@pytest.fixture
def client(app):
    return TestClient(app)


@pytest.fixture
def pool(jobs):
    return jobs.work.pool("p")


def test_a_single_push_is_accepted_and_wakes_the_pool(client, pool, launches):
    answer = client.post("/v1/pools/p/jobs", json={"data": {"n": 1}, "type": "backtest", "priority": 2})
    assert answer.status_code == 202
    (job_id,) = answer.json()["ids"]
    assert (pool.get(job_id).kind, pool.get(job_id).priority) == ("backtest", 2)
    assert [launch[0] for launch in launches] == ["p"]


def test_a_batch_push_keeps_its_order(client, pool):
    body = {"jobs": [{"data": n} for n in range(5)]}
    ids = client.post("/v1/pools/p/jobs", json=body).json()["ids"]
    assert [pool.get(i).data for i in ids] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/pools/p/jobs", {"jobs": []}),
        ("/v1/pools/p/jobs", {"data": 1, "delay": -1}),
        ("/v1/pools/p/jobs", {"data": 1, "surprise": 1}),
        ("/v1/pools/{x}/jobs", {"data": 1}),
    ],
)
def test_bad_input_is_refused_and_nothing_is_pushed(client, jobs, path, body):
    assert client.post(path, json=body).status_code == 422
    assert jobs.work.pools() == []


def test_jobs_are_listed_with_filter_and_paging(client, pool):
    ids = client.post("/v1/pools/p/jobs", json={"jobs": [{"data": n} for n in range(5)]}).json()["ids"]
    pool.complete(pool.claim("w"))
    first = client.get("/v1/pools/p/jobs?limit=3").json()
    assert [job["id"] for job in first["jobs"]] == ids[:1:-1]
    rest = client.get(f"/v1/pools/p/jobs?limit=3&before={first['next']}").json()
    assert ([job["id"] for job in rest["jobs"]], rest["next"]) == (ids[1::-1], None)
    done = client.get("/v1/pools/p/jobs?status=done").json()["jobs"]
    assert [job["id"] for job in done] == [ids[0]]


def test_an_unknown_job_is_not_found_and_says_what_to_do(client):
    answer = client.get("/v1/pools/p/jobs/12")
    assert answer.status_code == 404
    assert "muster jobs ls p" in answer.json()["detail"]


def test_cancel_resume_rerun_and_redrive(client, pool):
    (job_id,) = client.post("/v1/pools/p/jobs", json={"data": 1, "max_retries": 1}).json()["ids"]
    assert client.post(f"/v1/pools/p/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    assert client.post(f"/v1/pools/p/jobs/{job_id}/resume").json()["status"] == "pending"
    assert client.post(f"/v1/pools/p/jobs/{job_id}/resume").status_code == 409
    pool.fail(pool.claim("w"), "boom")
    assert client.post("/v1/pools/p/redrive").json()["ids"] == [job_id]
    new = client.post(f"/v1/pools/p/jobs/{job_id}/rerun").json()["id"]
    assert pool.get(new).parent == job_id


def test_check_reap_pin_limit_and_description(client, jobs, pool, launches):
    pool.push(1)
    assert client.put("/v1/pools/p/pin", json={"image": "repo/sim:3"}).json()["pin"] == "repo/sim:3"
    client.put("/v1/pools/p/limit", json={"max_workers": 2})
    checked = client.post("/v1/pools/p/check").json()
    assert len(checked["launched"]) == 1
    assert checked["asked"] is False
    assert launches[0][2] == "repo/sim:3"
    described = client.get("/v1/pools/p").json()
    assert (described["pending"], described["workers"], described["max_workers"]) == (1, 1, 2)
    (listed,) = client.get("/v1/pools").json()
    assert {**listed, "oldest_pending_s": 0} == {**described, "oldest_pending_s": 0}
    assert client.post("/v1/pools/p/reap").json()["lost"] == []
    assert [worker["status"] for worker in client.get("/v1/pools/p/workers").json()] == ["starting"]


def test_progress_comes_as_server_sent_events(client, pool, monkeypatch):
    job_id = pool.push(1)
    job = pool.claim("w")
    looks, get = threading.Semaphore(0), pool.get

    def counted(job_id):
        found = get(job_id)
        looks.release()
        return found

    monkeypatch.setattr(pool, "get", counted)

    def work():
        for step in (0.25, 0.75):
            pool.report(job.id, job.token, {"fraction": step, "note": "walking"})
            for _ in range(3):  # the stream has looked again, and again
                assert looks.acquire(timeout=30)
        pool.complete(job, {"answer": 42})

    worker = threading.Thread(target=work)
    worker.start()
    answer = client.get(f"/v1/pools/p/jobs/{job_id}/events")
    worker.join()
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    told = [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in events]
    walked = [(data["status"], data.get("fraction")) for kind, data in told if kind == "progress"]
    assert walked[-3:] == [("claimed", 0.25), ("claimed", 0.75), ("done", 0.75)]
    assert told[-1] == ("end", {"status": "done", "result": {"answer": 42}, "error": None})


@contextmanager
def serving(app):
    """The app on a port of its own, in a thread; its address."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 30
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def test_a_webhook_trigger_makes_the_server_check_the_pool(app, pool, launches, tmp_path):
    asked = []

    @app.middleware("http")
    async def noted(request, go_on):
        asked.append(request.headers.get("authorization"))
        return await go_on(request)

    token = tmp_path / "token"
    token.write_text("of-an-operator\n", encoding="utf-8")
    with serving(app) as url:
        pool.push(1)
        trigger = Trigger("hook", TriggerType.WEBHOOK, url=url, token_file=token)
        fire(trigger, "p", Effects(check=lambda pool: None, jobs_url="memory://"))
        deadline = time.monotonic() + 30
        while not launches:
            assert time.monotonic() < deadline, "the server never launched"
            time.sleep(0.02)
    assert asked == ["Bearer of-an-operator"]
    assert pool.get(pool.list()[0].id).status is JobStatus.PENDING


@pytest.fixture
def muster(app, tmp_path):
    """`muster jobs ...` against a server; its answer, or its words when another exit code is expected."""
    with serving(app) as url:

        def call(*words, code=0):
            shared = ["--json", "--api-url", url, "--dir", str(tmp_path)]
            own = {"MUSTER_JOBS_URL": "", "MUSTER_TOKEN": "t"}
            done = CliRunner().invoke(cli_jobs, [*words, *shared], env=own)
            assert done.exit_code == code, done.output
            return json.loads(done.stdout) if code == 0 else done.stderr

        yield call


def test_every_command_asks_the_api(muster, pool, launches):
    ids = muster("push", "p", "1", "2", "--priority", "3", "--type", "backtest")["ids"]
    assert [(pool.get(i).data, pool.get(i).kind, pool.get(i).priority) for i in ids] == [
        (1, "backtest", 3),
        (2, "backtest", 3),
    ]
    assert len(launches) == 2
    (delayed,) = muster("push", "p", "3", "--delay", "900", "--dedup", "k", "--no-check")["ids"]
    assert muster("push", "p", "4", "--dedup", "k", "--no-check")["ids"] == [delayed]
    assert len(launches) == 2
    assert [job["id"] for job in muster("ls", "p")] == [delayed, ids[1], ids[0]]
    assert [job["id"] for job in muster("ls", "p", "--limit", "1", "--before", ids[1])] == [ids[0]]
    assert muster("ls")[0]["pending"] == 3
    assert muster("show", "p", delayed)["dedup"] == "k"
    assert muster("cancel", "p", delayed) == {"id": delayed, "status": "cancelled"}
    assert muster("resume", "p", delayed) == {"id": delayed, "status": "pending"}
    assert muster("rerun", "p", ids[0])["parent"] == ids[0]
    assert muster("check", "p", "--dry-run") == {"pool": "p", "wanted": 4, "live": 4, "would_launch": 0}
    assert muster("check", "p", "--max-workers", "5")["launched"] == []
    assert pool.settings().max_workers == 5
    assert len(muster("workers", "p")) == 4
    assert muster("reap", "p", "--dry-run") == {"pool": "p", "would_lose": []}
    assert muster("reap", "p")["lost"] == []
    assert muster("pin", "p", "repo/sim:2") == {"pool": "p", "pin": "repo/sim:2"}
    assert muster("pin", "p", "-") == {"pool": "p", "pin": None}
    pool.cancel(ids[0])
    bad = pool.push("x", max_retries=1, priority=9)
    pool.fail(pool.claim("w"), "broken\nin two lines")
    assert [job["id"] for job in muster("poisoned", "p")] == [bad]
    assert muster("redrive", "p", "--dry-run")["ids"] == [bad]
    assert muster("redrive", "p")["ids"] == [bad]
    assert muster("redrive", "p")["ids"] == []


def test_mistakes_end_with_the_code_of_their_kind(muster, pool):
    assert "has no job 42" in muster("show", "p", "42", code=3)
    (done,) = muster("push", "p", "1", "--no-check")["ids"]
    pool.complete(pool.claim("w"))
    assert "rerun it instead" in muster("resume", "p", done, code=4)
    assert "not JSON" in muster("push", "p", "{", code=2)
    assert "needs --url" in muster("check", "p", "--worker-option=--batch=10", code=2)
    assert "muster up --triggers t.yml" in muster("push", "p", "1", "--triggers", "t.yml", code=2)


def test_more_jobs_than_one_request_may_carry_are_pushed_in_several(muster, pool):
    ids = muster("push", "p", json.dumps("x" * 100), "--count", "2500", "--no-check")["ids"]
    assert len(set(ids)) == 2500 == pool.size()
    assert len(muster("ls", "p", "--limit", "1000")) == 1000


def test_push_waits_for_its_jobs_by_the_api(muster, pool):
    def work():
        while (job := pool.claim("w")) is None:
            pool.wait(0.1)
        pool.complete(job, {"answer": 42})

    worker = threading.Thread(target=work)
    worker.start()
    answer = muster("push", "p", "1", "--wait", "--no-check")
    worker.join()
    assert [(job["status"], job["result"]) for job in answer["jobs"]] == [("done", {"answer": 42})]


def test_without_engine_and_url_a_command_says_what_to_do(tmp_path):
    done = CliRunner().invoke(cli_jobs, ["ls", "--dir", str(tmp_path)], env={"MUSTER_JOBS_URL": ""})
    assert done.exit_code == 5
    assert "muster up" in done.stderr


def test_a_wrong_url_is_refused_with_the_ones_there_are(tmp_path):
    words = ["ls", "--dir", str(tmp_path), "--url", "mysql://x"]
    done = CliRunner().invoke(cli_jobs, words)
    assert done.exit_code == 2
    assert "sqlite:///path" in done.stderr


def test_on_one_machine_a_pin_is_an_environment_that_exists(jobs, tmp_path):
    here = FastAPI()
    install(here)
    here.include_router(router(jobs, ProcessLauncher("memory://")))
    here.dependency_overrides[of_the_fleet] = lambda: None
    client = TestClient(here)
    for wrong in ("repo/sim:1", str(tmp_path), str(tmp_path / "none"), "relative/venv"):
        answer = client.put("/v1/pools/p/pin", json={"image": wrong})
        assert (answer.status_code, jobs.work.pool("p").settings().pin) == (409, None)
        assert "python -m venv" in answer.json()["detail"]
    assert client.put("/v1/pools/p/pin", json={"image": sys.executable}).status_code == 200
    assert client.put("/v1/pools/p/pin", json={"image": sys.prefix}).json()["pin"] == sys.prefix
    assert jobs.work.pool("p").settings().pin == sys.prefix


def jobs_command(*words, code=0):
    done = CliRunner().invoke(cli_jobs, words, env={"MUSTER_JOBS_URL": "", "MUSTER_DIR": ""})
    assert done.exit_code == code, done.output
    return done


def test_a_file_of_triggers_is_checked_and_its_cron_lines_are_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = str(Path(__file__).parents[2] / "examples/triggers.yml")
    line = "*/5 * * * * muster jobs check backtests"
    done = jobs_command("triggers", example, "--url", "sqlite:///jobs.db")
    assert done.stdout == f"{line} --url sqlite:///{tmp_path}/jobs.db\n"
    assert "inline               in-loop    every pool, on work_added" in done.stderr
    assert jobs_command("triggers", example, "--dir", "here").stdout == f"{line} --dir {tmp_path}/here\n"
    asked = jobs_command("triggers", example, "--api-url", "http://api:3001", "--json")
    first, second, *_ = json.loads(asked.stdout)
    assert first == {
        "name": "every-five-minutes",
        "type": "cron",
        "pool": "backtests",
        "on": None,
        "cron": f"{line} --api-url http://api:3001",
    }
    assert (second["on"], second["cron"]) == ("work_added", None)


def test_a_bad_file_of_triggers_is_refused_before_anything_is_pushed(tmp_path):
    file, url = tmp_path / "t.yml", f"sqlite:///{tmp_path}/jobs.db"
    file.write_text("triggers: [{name: a, type: in-loop}]", encoding="utf-8")
    for words in (["triggers", str(file)], ["push", "p", "1", "--url", url, "--triggers", str(file)]):
        done = jobs_command(*words, code=2)
        assert "trigger a: without 'on: work_added'" in done.stderr
        assert done.stdout == ""
    assert not (tmp_path / "jobs.db").exists()
    assert "No such file" in jobs_command("triggers", str(tmp_path / "none.yml"), code=2).stderr
