"""The command line against a real API: data on stdout, words on stderr, exit codes that mean something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import jwt
import pytest
from moto import mock_aws
from typer.testing import CliRunner

from api.fleet import Fleet
from cli.main import COMMANDS, app
from muster import keys, steps
from muster.errors import Refused
from muster.model import Cause
from muster.store import Store
from tests.api_stand import (
    SIGNER,
    begin,
    commands_in,
    run_worker,
    served,
    settings_with_queues,
    sqs_client,
)
from tests.unit.test_api_dead_letters import give_up


@pytest.fixture
def store(valkey):
    return Store(valkey)


@pytest.fixture
def world(store, tmp_path):
    with mock_aws():
        sqs = sqs_client()
        settings = settings_with_queues(sqs)
        with served(Fleet(store, sqs, settings, logs=tmp_path / "logs")) as url:
            (tmp_path / "logs").mkdir()
            endpoints = {"api": url, "aws": url, "valkey": url, "queues": {}, "pid": 1}
            SIGNER.save(tmp_path)
            (tmp_path / "endpoints.json").write_text(json.dumps(endpoints))
            yield store, sqs, settings


@pytest.fixture
def muster(world, tmp_path, monkeypatch):
    """Run a command in the folder of the served API."""
    monkeypatch.setenv("MUSTER_DIR", str(tmp_path))
    return lambda *words: CliRunner().invoke(app, words)


def data(result):
    assert result.exit_code == 0, (result.stdout, result.stderr)
    return json.loads(result.stdout)


@pytest.fixture
def hand(world):
    """Carries out commands as worker_control and a worker would."""
    store, sqs, settings = world
    ended, failing = threading.Event(), set()

    def work():
        while not ended.wait(0.02):
            for body in map(json.loads, commands_in(sqs, settings)):
                user = body["user_id"]
                view = store.one(steps.read_user(user))
                if body["action"] == "stop":
                    store.one(steps.begin_stop(user, view.now_ms, body["command_id"]))
                    if view.mark:
                        store.one(steps.drop_mark(user, view.mark.epoch, f"w-{user}", "done"))
                    continue
                if view.mark and body["action"] == "restart":
                    store.one(steps.drop_mark(user, view.mark.epoch, f"w-{user}", "replaced"))
                given = begin(store, user, Cause(body["action"]), view.now_ms)
                run_worker(store, given, ready=user not in failing)
                if user in failing:
                    store.one(steps.drop_mark(user, given.epoch, f"w-{user}", "bad key", final=True))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield failing
    ended.set()
    thread.join(30)


def test_a_command_prints_what_was_accepted(muster, world):
    result = muster("start", "u1", "u2", "--reason", "test", "--json")
    accepted = data(result)
    bodies = [json.loads(body) for body in commands_in(*world[1:])]
    assert {one["user_id"]: one["command_id"] for one in accepted} == {
        body["user_id"]: body["command_id"] for body in bodies
    }
    assert {body["reason"] for body in bodies} == {"test"}
    assert result.stderr == ""


@pytest.mark.usefixtures("hand")
def test_start_stop_and_restart_wait_for_what_they_asked(muster):
    (started,) = data(muster("start", "u1", "--wait", "--timeout", "60", "--json"))
    assert started["worker"]["phase"] == "ready"
    (restarted,) = data(muster("restart", "u1", "--wait", "--timeout", "60", "--json"))
    assert restarted["worker"]["phase"] == "ready"
    assert restarted["worker"]["epoch"] > started["worker"]["epoch"]
    (stopped,) = data(muster("stop", "u1", "--wait", "--timeout", "60", "--json"))
    assert stopped["worker"]["phase"] == "stopped"
    many = data(muster("start", *(f"u{n}" for n in range(12)), "--wait", "--timeout", "60", "--json"))
    assert {one["worker"]["phase"] for one in many} == {"ready"}


def test_a_wait_that_is_not_done_in_time_ends_with_1_and_says_how_to_find_out_why(muster):
    result = muster("start", "u1", "--wait", "--timeout", "0.1", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["worker"] is None
    assert "muster explain u1" in result.stderr


def test_a_wait_ends_at_once_when_the_start_is_given_up(muster, hand):
    hand.add("u1")
    result = muster("start", "u1", "--wait", "--timeout", "100", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["worker"]["phase"] == "failed"
    assert json.loads(result.stdout)[0]["worker"]["reason"] == "bad key"


def test_status_shows_one_user_or_the_fleet(muster, store):
    run_worker(store, begin(store, "u1"))
    assert data(muster("status", "u1", "--json"))["pid"] == 4711
    fleet = data(muster("status", "--json"))
    assert fleet["counts"]["ready"] == 1
    assert fleet["pool"]["target"] == 4
    assert fleet["queues"][0]["name"] == "worker-control.fifo"
    assert "ready" in muster("status").stdout
    assert muster("status", "u1").stdout.startswith("user_id")
    assert "4711" in muster("status", "u1").stdout


def users(result):
    return [worker["user_id"] for worker in data(result)["workers"]]


def test_ls_filters_sorts_and_pages(muster, store):
    for number in range(5):
        begin(store, f"u{number}")
    run_worker(store, begin(store, "other"))
    assert users(muster("ls", "--q", "u", "--sort", "-user_id", "--json")) == ["u4", "u3", "u2", "u1", "u0"]
    assert users(muster("ls", "--phase", "ready", "--json")) == ["other"]
    first = muster("ls", "--limit", "4", "--json")
    second = muster("ls", "--cursor", data(first)["next_cursor"], "--json")
    assert users(first) + users(second) == ["other", "u0", "u1", "u2", "u3", "u4"]
    rest = data(second)
    assert rest["next_cursor"] is None
    shown = muster("ls", "--limit", "2")
    assert "other" in shown.stdout
    assert "--cursor" in shown.stderr
    assert muster("ls", "--sort", "pid").exit_code == 2


def test_a_reason_in_brackets_is_shown_as_it_is(muster, store):
    begin(store, "u1")
    store.client.hset(keys.desired("u1"), "reason", "[bold]no[/] such [thing]")
    assert "[bold]no[/] such [thing]" in muster("ls").stdout


def test_explain_tells_the_story(muster, store):
    run_worker(store, begin(store, "u1"))
    assert data(muster("explain", "u1", "--json"))["history"][0]["event"] == "begin start"
    told = muster("explain", "u1").stdout
    assert "mark taken" in told
    assert "next: none" in told


def test_the_pool_is_shown_and_set(muster):
    assert data(muster("pool", "--json"))["target"] == 4
    assert data(muster("pool", "--target", "7", "--json"))["target"] == 7
    assert muster("pool", "--target", "-1").exit_code == 2


def test_queues_point_to_what_was_given_up(muster, world):
    give_up(world, "u1", "x")
    result = muster("queues")
    assert "worker-control.fifo" in result.stdout
    assert "muster dlq ls" in result.stderr
    assert len(data(muster("queues", "--json"))) == 3


def test_dead_letters_are_listed_shown_redriven_and_purged(muster, world):
    for user in ("u1", "u2", "u3"):
        give_up(world, user, json.dumps({"action": "start", "user_id": user}), reason="[odd]")
    letters = data(muster("dlq", "ls", "--json"))
    assert sorted(letter["group"] for letter in letters) == ["u1", "u2", "u3"]
    assert "[odd]" in muster("dlq", "ls").stdout
    one = letters[0]["message_id"]
    assert data(muster("dlq", "show", one, "--json")) == letters[0]
    assert data(muster("dlq", "redrive", "--dry-run", "--json")) == {"redriven": 0, "would_redrive": 3}
    assert data(muster("dlq", "redrive", one, "--json")) == {"redriven": 1}
    assert muster("dlq", "show", one).exit_code == 3
    assert muster("dlq", "purge").exit_code == 2
    assert data(muster("dlq", "purge", "--dry-run", "--json")) == {"purged": 0, "would_purge": 2}
    assert data(muster("dlq", "purge", "--yes", "--json")) == {"purged": 2}
    assert data(muster("dlq", "ls", "--json")) == []
    assert muster("dlq", "ls", "--queue", "nothing").exit_code == 3


def test_logs_are_printed_as_they_are(muster, store, tmp_path):
    run_worker(store, begin(store, "u1"))
    (tmp_path / "logs" / "task-u1.log").write_text("one\n[two]\n")
    assert muster("logs", "u1").stdout == "one\n[two]\n"
    assert muster("logs", "u1", "-n", "1").stdout == "[two]\n"
    assert data(muster("logs", "u1", "-n", "1", "--json")) == {"task_id": "task-u1", "line": "[two]"}


def test_logs_follow_until_interrupted(muster, store, tmp_path, monkeypatch):
    run_worker(store, begin(store, "u1"))
    log = tmp_path / "logs" / "task-u1.log"
    log.write_text("one\n")
    rounds = []

    def sleep(seconds):
        rounds.append(seconds)
        if len(rounds) > 2:
            raise KeyboardInterrupt
        with log.open("a") as more:
            more.write(f"line {len(rounds)}\n")

    monkeypatch.setattr("cli.workers.time.sleep", sleep)
    result = muster("logs", "u1", "-f")
    assert result.stdout == "one\nline 1\nline 2\n"
    assert result.exit_code == 130


def test_exit_codes_say_what_kind_of_failure_it_was(muster, tmp_path, monkeypatch):
    assert muster("status", "nobody").exit_code == 3
    assert muster("start", "a b").exit_code == 2
    assert muster("start").exit_code == 2
    assert muster("ls", "--phase", "happy").exit_code == 2
    (tmp_path / "wrong").write_text("x" * 20)
    wrong_token = muster("ls", "--token-file", str(tmp_path / "wrong"))
    assert wrong_token.exit_code == 1
    assert "--token-file" in wrong_token.stderr
    assert muster("ls", "--token-file", str(tmp_path / "none")).exit_code == 2
    away = muster("ls", "--api-url", "http://127.0.0.1:1")
    assert away.exit_code == 5
    assert "muster up" in away.stderr
    assert muster("ls", "--api-url", "nonsense").exit_code in (2, 5)
    nothing = muster("ls", "--dir", str(tmp_path / "empty"))
    assert nothing.exit_code == 5
    assert "muster up" in nothing.stderr
    assert nothing.stdout == ""


def test_the_local_token_goes_to_the_local_api_only(muster, monkeypatch):
    shown = []
    real = httpx.HTTPTransport.handle_request

    def handle(self, request):
        shown.append(request.headers.get("authorization"))
        return real(self, request)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", handle)
    assert muster("ls", "--api-url", "http://127.0.0.1:1").exit_code == 5
    assert muster("ls").exit_code == 0
    monkeypatch.setenv("MUSTER_TOKEN", "given")
    assert muster("ls", "--api-url", "http://127.0.0.1:1").exit_code == 5
    assert shown[0] is None
    claims = jwt.decode(shown[1].removeprefix("Bearer "), options={"verify_signature": False})
    assert claims["muster_role"] == "operator"
    assert claims["exp"] - claims["iat"] == 300
    assert shown[2] == "Bearer given"


@pytest.mark.parametrize(
    ("words", "role", "may"),
    [
        ((), "operator", ["fleet:change", "fleet:read"]),
        (("--role", "viewer", "--ttl", "30s"), "viewer", ["fleet:read"]),
        (("--role", "user", "--user", "u1", "--ttl", "12h"), "user", ["own:change", "own:read"]),
    ],
)
def test_a_token_for_somebody_is_printed_and_the_api_knows_it(muster, tmp_path, words, role, may):
    printed = muster("token", *words)
    assert printed.exit_code == 0, printed.stderr
    (tmp_path / "token").write_text(printed.stdout)
    endpoints = json.loads((tmp_path / "endpoints.json").read_text())
    me = httpx.get(
        f"{endpoints['api']}/v1/me", headers={"Authorization": f"Bearer {printed.stdout.strip()}"}
    ).json()
    assert (me["role"], me["may"]) == (role, may)
    assert me["user_id"] == ("u1" if role == "user" else None)


@pytest.mark.parametrize(
    "words",
    [
        ("--role", "king"),
        ("--role", "user"),
        ("--user", "u1"),
        ("--role", "user", "--user", "a b"),
        ("--ttl", "13h"),
        ("--ttl", "0s"),
        ("--ttl", "5"),
    ],
)
def test_a_token_that_means_nothing_is_refused(muster, words):
    result = muster("token", *words)
    assert result.exit_code == 2
    assert result.stdout == ""


def test_without_the_key_there_is_no_token_and_it_says_where_it_should_be(muster, tmp_path):
    (tmp_path / "api-key.pem").chmod(0o644)
    open_to_all = muster("token")
    assert open_to_all.exit_code == 1
    assert "chmod 600" in open_to_all.stderr
    nowhere = muster("token", "--dir", str(tmp_path / "empty"))
    assert nowhere.exit_code == 1
    assert "muster up" in nowhere.stderr


def test_a_refusal_ends_with_4(muster, monkeypatch):
    def logs(*words):
        raise Refused("kept elsewhere")

    monkeypatch.setattr(Fleet, "logs", logs)
    assert muster("logs", "u1").exit_code == 4


def test_doctor_finds_a_good_machine_good_and_prints_the_fix_for_a_bad_one(muster, tmp_path):
    findings = data(muster("doctor", "--json"))
    assert all(one["ok"] for one in findings)
    assert {"Python", "API", "Valkey", "AWS endpoint", "redis"} <= {one["check"] for one in findings}
    endpoints = json.loads((tmp_path / "endpoints.json").read_text())
    (tmp_path / "endpoints.json").write_text(json.dumps(endpoints | {"valkey": "redis://127.0.0.1:1/0"}))
    result = muster("doctor", "--json")
    assert result.exit_code == 1
    (wrong,) = [one for one in json.loads(result.stdout) if not one["ok"]]
    assert wrong["check"] == "Valkey"
    assert "muster up" in wrong["fix"]


def test_doctor_sees_a_taken_port(tmp_path, monkeypatch):
    import socket

    from cli import doctor

    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(doctor, "_PORTS", {"api": taken.getsockname()[1]})
        result = CliRunner().invoke(app, ["doctor", "--json", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    (wrong,) = [one for one in json.loads(result.stdout) if not one["ok"]]
    assert "--api-port 0" in wrong["fix"]


def test_damaged_endpoints_are_named(muster, tmp_path):
    (tmp_path / "endpoints.json").write_text("{")
    result = muster("ls")
    assert result.exit_code == 1
    assert "endpoints.json is damaged" in result.stderr


def test_every_command_on_offer_loads_and_has_help():
    offered = [command for command in COMMANDS if command.there]
    assert {"start", "dlq", "doctor", "jobs"} <= {command.name for command in offered}
    for command in offered:
        result = CliRunner().invoke(app, [str(command.name), "--help"])
        assert result.exit_code == 0, (command.name, result.output)
        assert "Usage" in result.output


def test_help_imports_no_command():
    code = (
        "import sys; from typer.testing import CliRunner; from cli.main import app;"
        "r = CliRunner().invoke(app, ['--help']); assert r.exit_code == 0, r.output;"
        "heavy = {'httpx', 'redis', 'boto3', 'fastapi', 'cli.workers', 'pydantic'} & set(sys.modules);"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_an_unknown_command_is_a_usage_error():
    result = CliRunner().invoke(app, ["dance"])
    assert result.exit_code == 2


def test_no_colour_in_a_pipe_or_when_told(muster, store, monkeypatch):
    run_worker(store, begin(store, "u1"))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in muster("ls").stdout


@pytest.mark.parametrize(
    ("words", "number", "offered"),
    [("muster st", 1, "start"), ("muster ls --p", 2, "--phase"), ("muster dlq ", 2, "redrive")],
)
def test_the_shell_completes_commands_that_are_not_loaded_yet(words, number, offered):
    env = os.environ | {"_MUSTER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(number)}
    muster = Path(sys.executable).with_name("muster")
    done = subprocess.run([muster], env=env, capture_output=True, text=True)
    assert offered in done.stdout.split()


def test_a_mistyped_command_is_answered_with_the_right_one():
    done = CliRunner().invoke(app, ["strat"])
    assert done.exit_code == 2
    assert "'start'" in done.stderr


@pytest.mark.parametrize("name", [str(command.name) for command in COMMANDS])
def test_every_command_shows_an_example(name):
    command = next(one for one in COMMANDS if one.name == name).load()
    helps = [below.help or "" for below in getattr(command, "commands", {"": command}).values()]
    assert all("Example:" in text for text in helps) or name in _SELF_EVIDENT


#: Without arguments there is one way to call them.
_SELF_EVIDENT = {"queues", "version", "doctor"}
