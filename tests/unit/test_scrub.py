"""The scrubber: what a process has learned, and what looks like a secret, is never written."""

from __future__ import annotations

import ast
import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lambdas import telemetry
from muster import scrub
from muster.brokers.port import BrokerAway, Credentials

ROOT = Path(__file__).parents[2]
SECRET = 'ca"nar\\y-\u00e9-5e7d9b'


@pytest.fixture(autouse=True)
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrub, "_learned", type(scrub._learned)())
    monkeypatch.setattr(scrub, "_forms", ())


@pytest.fixture
def record_factory() -> Iterator[None]:
    before = logging.getLogRecordFactory()
    yield
    logging.setLogRecordFactory(before)


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        repr(SECRET),
        json.dumps({"echo": SECRET}),
        json.dumps({"message": json.dumps({"echo": SECRET})}),
        json.dumps({"echo": SECRET}, ensure_ascii=False),
        f"https://host/path?next={quote(SECRET)}",
        f"one {SECRET} and {SECRET} again",
    ],
)
def test_a_learned_value_is_hidden_however_it_is_written(written: str) -> None:
    assert scrub.hide(written) == written
    scrub.learn(SECRET)
    hidden = scrub.hide(written)
    assert "5e7d9b" not in hidden
    assert scrub.HIDDEN in hidden


@pytest.mark.parametrize(
    ("written", "left"),
    [
        ("token=abc123, next", "token=***, next"),
        ("GET /v1/events?token=abc123&since=4 HTTP/1.1", "GET /v1/events?token=***&since=4 HTTP/1.1"),
        ("Authorization: Bearer abc.def-123", "Authorization: ***"),
        ("{'Authorization': 'Bearer abc'}", "{'Authorization': '***'}"),
        ("[(b'authorization', b'Bearer abc')]", "[(b'authorization', b'***')]"),
        (
            '{"APCA-API-SECRET-KEY": "abc", "symbol": "AAPL"}',
            '{"APCA-API-SECRET-KEY": "***", "symbol": "AAPL"}',
        ),
        (r'{"m": "{\"api_key\": \"ab\\\"c\"}"}', r'{"m": "{\"api_key\": \"***\"}"}'),
        ('{"password": "a\\"b", "x": 1}', '{"password": "***", "x": 1}'),
        ('{"secret": 12345678}', '{"secret": "***"}'),
        ('{"token": null}', '{"token": null}'),
        ('cut off: {"client_secret": "abc', 'cut off: {"client_secret": "***'),
        ("password: hunter2", "password: ***"),
        ("went out with bearer abcdefgh.ijkl", "went out with bearer ***"),
        ("got eyJhbGciOiJIUzI1.eyJzdWIiOiJ1MSJ9.c2ln now", "got *** now"),
        ("redis://user:pa55word@cache:6379/0 is away", "redis://user:***@cache:6379/0 is away"),
        ("Set-Cookie: session=abc; Path=/", "Set-Cookie: ***; Path=/"),
    ],
)
def test_what_looks_like_a_secret_is_emptied_and_the_rest_stays(written: str, left: str) -> None:
    assert scrub.scrub(written) == left
    assert scrub.scrub(left) == left, "a second pass changes nothing"


@pytest.mark.parametrize(
    "written",
    [
        "there is no secret 'muster/broker/u1'; store it, then start again",
        "the broker does not accept this key (status 401)",
        '{"credentials_ref": "muster/broker/u1", "tokens": 5, "user_id": "u1"}',
        "http://127.0.0.1:8765/v2/account",
        "u1 is ready at epoch 1763456789012",
    ],
)
def test_ordinary_words_stay_as_they_are(written: str) -> None:
    assert scrub.scrub(written) == written


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["token", "api_key", "n"]), st.text() | st.integers() | st.none()))
def test_json_stays_json_and_loses_only_the_secrets(fields: dict[str, object]) -> None:
    read = json.loads(scrub.scrub(json.dumps(fields)))
    assert read.keys() == fields.keys()
    for name in ("token", "api_key"):
        if fields.get(name) is not None:
            assert read[name] == scrub.HIDDEN
    assert read.get("n") == fields.get("n") or isinstance(fields.get("n"), str)


def test_long_lines_take_time_in_proportion() -> None:
    """A pattern that backtracks would make one long line a way to stop a process."""
    for line in ("a" * 200_000, "token" * 40_000, "token=" + "\\" * 100_000, '"token": "' + 'x\\"' * 60_000):
        began = time.perf_counter()
        scrub.scrub(line)
        assert time.perf_counter() - began < 2.0, line[:20]


def test_a_short_value_is_not_learned_and_old_ones_are_forgotten_last_used_first() -> None:
    scrub.learn("short")
    assert scrub.hide("a short word") == "a short word"
    names = [f"secret-{number:04}" for number in range(scrub.KEPT)]
    scrub.learn(*names)
    scrub.learn(names[0])
    scrub.learn("one-more-secret")
    assert scrub.hide(f"{names[0]} {names[1]} {names[2]}") == f"*** {names[1]} ***"


def test_only_fields_that_are_secret_by_name_are_learned_from_options() -> None:
    scrub.learn_fields({"defaultType": "margin-isolated", "inner": {"password": "open-sesame"}})
    assert scrub.hide("margin-isolated open-sesame") == "margin-isolated ***"


def test_an_error_never_quotes_a_learned_value() -> None:
    scrub.learn(SECRET)
    away = BrokerAway(f"the broker answered with status 500: you sent {SECRET}")
    assert str(away) == "the broker answered with status 500: you sent ***"
    assert "5e7d9b" not in repr(away)


def test_credentials_show_nothing_of_themselves() -> None:
    assert "5e7d9b" not in repr(Credentials("paper", SECRET, SECRET, SECRET, {"password": SECRET}))


def test_log_records_are_scrubbed_with_their_arguments_and_tracebacks(
    record_factory: None, caplog: pytest.LogCaptureFixture
) -> None:
    scrub.learn(SECRET)
    scrub.guard_records()
    log = logging.getLogger("scrubbed")
    log.warning("token=%s of %s", "abc123", {"echo": SECRET})
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        log.exception("failed with %s", error)
    assert "abc123" not in caplog.text
    assert "5e7d9b" not in caplog.text
    assert "ValueError: ***" in caplog.text


def test_a_functions_logger_and_what_its_handler_raises_are_scrubbed(
    record_factory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    scrub.learn(SECRET)
    log = telemetry.logger("scrubbed-function")

    @telemetry.scrubbed_errors
    def handler(event: dict[str, str], _: object) -> None:
        try:
            raise KeyError(event["echo"])
        except KeyError:
            log.exception("failed", echo=event["echo"], headers={"Authorization": "Bearer abc"})
            raise

    with pytest.raises(RuntimeError) as raised:
        handler({"echo": SECRET}, None)
    assert str(raised.value) == "KeyError: '***'"
    (line,) = written.getvalue().splitlines()
    said = json.loads(line)
    assert (said["echo"], said["headers"]) == ("***", {"Authorization": "***"})
    assert "5e7d9b" not in line


#: Where the processes of the system begin.
MAINS = [
    *("worker/boot.py", "worker/jobs.py", "worker/jobs_child.py", "worker/cycle_main.py", "api/main.py"),
    *("local/api_process.py", "local/paper/server.py", "cli/up.py", "cli/supervise.py", "cli/market.py"),
]


@pytest.mark.parametrize("main", MAINS)
def test_every_process_of_the_system_is_guarded(main: str) -> None:
    calls = [
        node.func.id
        for node in ast.walk(ast.parse((ROOT / main).read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]
    assert "guard" in calls


PROGRAM = """
import logging, sys, threading
logging.basicConfig(level=logging.INFO)
uvicorn = logging.getLogger("uvicorn.access")
from muster import scrub
scrub.guard(); scrub.guard()
scrub.learn("canary-0f6c1e7d9b")
print("printed canary-0f6c1e7d9b")
logging.info("logged %s", "canary-0f6c1e7d9b")
from uvicorn.logging import AccessFormatter
handler = logging.StreamHandler(sys.stdout)
handler.setFormatter(AccessFormatter('%(request_line)s %(status_code)s', use_colors=False))
uvicorn.addHandler(handler)
uvicorn.info('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", "/events?token=abc123&n=1", "1.1", 200)
def fail():
    raise ValueError("canary-0f6c1e7d9b")
thread = threading.Thread(target=fail)
thread.start(); thread.join()
fail()
"""


def test_a_guarded_process_writes_no_secret_by_any_way() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    said = done.stdout + done.stderr
    assert "canary" not in said
    assert "printed ***" in done.stdout
    assert "logged ***" in done.stderr
    assert "GET /events?token=***&n=1 HTTP/1.1" in done.stdout
    assert done.stderr.count("ValueError: ***") == 2, "of the thread and of the program"
    assert done.returncode == 1
