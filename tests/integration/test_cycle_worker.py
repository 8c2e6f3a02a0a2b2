"""The worker's side of the contract, against a real server: lock, heartbeat, state, control, database."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from muster.clock import SystemClock
from muster.errors import LostLease
from muster.store import Store
from supervisor.timings import Timings
from worker.cycle import Context, CycleWorker, worker_class
from worker.cycle_db import open_database, prune
from worker.cycle_keys import Keys, command_for
from worker.cycle_lock import Holder
from worker.cycle_main import load_strategy

KEYS = Keys("t")
PATIENCE = 30.0
QUICK = replace(Timings(), heartbeat_every=timedelta(seconds=0.1))


class Running:
    """A worker in a thread of its own, with its own event loop, as in its own process."""

    def __init__(self, strategy: Any, server, folder: Path, **options: Any) -> None:
        clients = [server.client(), server.client()]
        options = {"interval_sec": 900, "timings": QUICK, **options}
        self.worker = worker_class(strategy)(
            "A",
            store=Store(clients[0]),
            ear_client=clients[1],
            clock=SystemClock(),
            keys=KEYS,
            data=folder,
            **options,
        )
        self.code: int | None = None
        self._clients = clients
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        self.code = asyncio.run(self.worker.run())

    def join(self) -> int | None:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the worker did not leave"
        for client in self._clients:
            client.close()
        return self.code

    def leave(self) -> int | None:
        if self._thread.is_alive():
            self.worker.ask_to_leave("the test")
        return self.join()


@pytest.fixture
def start(valkey_server, valkey, tmp_path):
    running: list[Running] = []

    def go(strategy: Any, **options: Any) -> Running:
        running.append(Running(strategy, valkey_server, tmp_path, **options))
        return running[-1]

    yield go
    for each in running:
        each.leave()


def until(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.01)
    return value


def state(client, **wanted: Any) -> dict | None:
    found = json.loads(client.get(KEYS.state("A")) or "{}")
    return found if all(found.get(name) == value for name, value in wanted.items()) else None


class Remembers(CycleWorker):
    """Has a secret in memory and a result to show."""

    async def cycle(self, ctx: Context) -> dict[str, Any]:
        self.secret = "position book"
        ctx.require_lock()
        return {"epoch": ctx.cycle, "decision": "hold"}


def test_a_cycle_is_published_and_stored_and_the_memory_stays_inside(start, valkey, tmp_path):
    running = start(Remembers)
    seen = until("the result", lambda: state(valkey, status="sleeping"))
    assert seen["result"] == {"epoch": 1, "decision": "hold"}
    assert (seen["error"], seen["cycle"], seen["pid"]) == (None, 1, os.getpid())
    assert seen["next_cycle_at"] - seen["cycle_at"] == pytest.approx(900, abs=5)
    assert "position book" not in valkey.get(KEYS.state("A"))
    assert 0 < valkey.pttl(KEYS.state("A")) <= 60_000
    assert 0 < valkey.pttl(KEYS.heartbeat("A")) <= 45_000
    assert 890_000 < valkey.pttl(KEYS.lock("A")) <= 900_000
    assert abs(int(valkey.get(KEYS.heartbeat("A"))) / 1000 - time.time()) < 10
    assert running.leave() == 0
    assert valkey.exists(KEYS.lock("A")) == 0
    with sqlite3.connect(tmp_path / "A.db") as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        [(error, result)] = db.execute("SELECT error, result FROM cycles").fetchall()
        assert (error, json.loads(result)) == (None, {"epoch": 1, "decision": "hold"})
        assert db.execute("SELECT ended FROM ownership").fetchall() == [("released",)]
    db.close()


def test_cycles_follow_the_interval(start, valkey):
    start(lambda ctx: {"n": ctx.cycle}, interval_sec=0.05)
    until("the fifth cycle", lambda: state(valkey) and state(valkey)["cycle"] >= 5)


def test_an_error_is_shown_survived_and_forgotten(start, valkey):
    def fails_once(ctx: Context) -> dict:
        if ctx.cycle == 1:
            raise ValueError("no candles")
        return {"ok": True}

    start(fails_once, interval_sec=1)
    seen = until("the error", lambda: state(valkey, status="error"))
    assert seen["error"] == "ValueError: no candles"
    until("a good cycle", lambda: state(valkey, error=None, result={"ok": True}))


def test_a_result_that_is_no_json_is_an_error(start, valkey):
    start(lambda ctx: {"when": object()})
    assert "not JSON serializable" in until("the error", lambda: state(valkey, status="error"))["error"]


def test_a_cycle_that_blocks_keeps_its_lock_and_its_heartbeat(start, valkey):
    go_on = threading.Event()

    def blocks(ctx: Context) -> dict:
        ctx.progress("waiting for a bridge")
        ctx.publish(seen="early")
        go_on.wait(PATIENCE)
        return {"done": True}

    start(blocks)
    seen = until("progress", lambda: state(valkey, progress="waiting for a bridge", result={"seen": "early"}))
    assert seen["status"] == "running"
    first = valkey.get(KEYS.heartbeat("A"))
    valkey.pexpire(KEYS.lock("A"), 5000)
    until("more beats", lambda: valkey.get(KEYS.heartbeat("A")) != first)
    until("a renewed lock", lambda: valkey.pttl(KEYS.lock("A")) > 800_000)
    go_on.set()
    until("the end of the cycle", lambda: state(valkey, result={"done": True}))


def test_control_messages_reach_those_they_name(start, valkey):
    running = start(Remembers)
    until("it listens", lambda: valkey.pubsub_numsub(KEYS.control)[0][1] == 1)
    valkey.publish(KEYS.control, "SHUTDOWN B")
    valkey.publish(KEYS.control, "DANCE A")
    valkey.publish(KEYS.control, "RESTART A")
    assert running.join() == 0
    assert valkey.get(KEYS.restarting("A")) == "1"
    assert 0 < valkey.pttl(KEYS.restarting("A")) <= 60_000


def test_a_shutdown_for_everybody_leaves_no_flag(start, valkey):
    running = start(Remembers)
    until("it listens", lambda: valkey.pubsub_numsub(KEYS.control)[0][1] == 1)
    valkey.publish(KEYS.control, "SHUTDOWN")
    assert running.join() == 0
    assert valkey.exists(KEYS.restarting("A")) == 0


def test_a_worker_that_finds_the_lock_taken_leaves_and_opens_nothing(start, valkey, tmp_path):
    valkey.set(KEYS.lock("A"), Holder.me().value(), px=900_000)
    assert start(Remembers).join() == 4
    assert not (tmp_path / "A.db").exists()


def test_a_worker_whose_lock_was_taken_ends_in_the_middle_of_its_cycle(valkey_server, valkey, tmp_path):
    (tmp_path / "stuck.py").write_text("import time\ndef cycle(ctx):\n    time.sleep(600)\n    return {}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "worker.cycle_main", "A"],
        cwd=tmp_path,
        env={
            **os.environ,
            "VALKEY_URL": valkey_server.url,
            "MUSTER_PREFIX": "t",
            "MUSTER_TIMINGS": "heartbeat_every=0.1",
            "WORKER_SPEC": json.dumps({"strategy": "stuck:cycle"}),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until("it runs", lambda: state(valkey, status="running"))
        valkey.set(KEYS.lock("A"), "somebody else")
        _, words = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 4
    assert "lock lost: 'somebody else' holds the lock now" in words
    with sqlite3.connect(tmp_path / ".data" / "A.db") as db:
        assert db.execute("SELECT ended FROM ownership").fetchall() == [("lost",)]
    db.close()


def test_interval_sec_in_the_environment_overrides_the_entry(valkey_server, valkey, tmp_path):
    (tmp_path / "count.py").write_text("async def cycle(ctx):\n    return {'interval': ctx.interval_sec}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "worker.cycle_main", "A"],
        cwd=tmp_path,
        env={
            **os.environ,
            "VALKEY_URL": valkey_server.url,
            "MUSTER_PREFIX": "t",
            "INTERVAL_SEC": "77",
            "WORKER_SPEC": json.dumps({"strategy": "count:cycle", "interval_sec": 5}),
        },
    )
    try:
        until("the first cycle", lambda: state(valkey, result={"interval": 77.0}))
    finally:
        process.terminate()
    assert process.wait(PATIENCE) == 0


def test_a_side_effect_is_refused_once_the_lock_could_have_ended(start, valkey):
    asked: list[str] = []

    def late(ctx: Context) -> dict:
        ctx._worker.lock._until = ctx._worker.clock.monotonic() - 1
        try:
            ctx.require_lock()
        except LostLease:
            asked.append("refused")
        return {}

    start(late, timings=Timings())
    until("the answer", lambda: asked)


def test_old_rows_are_pruned_from_every_table_with_a_time(tmp_path):
    db = open_database(tmp_path / "A.db")
    day = 86_400.0
    db.execute("CREATE TABLE mine (at REAL, note TEXT)")
    db.execute('CREATE TABLE "odd "" name" (at REAL)')
    db.execute("CREATE TABLE timeless (note TEXT)")
    now = 1_700_000_000.0
    for age in (91, 89):
        db.execute("INSERT INTO mine VALUES (?, '')", (now - age * day,))
        db.execute('INSERT INTO "odd "" name" VALUES (?)', (now - age * day,))
        db.execute("INSERT INTO timeless VALUES ('kept')")
    assert prune(db, now, timedelta(days=90)) == 2
    assert db.execute("SELECT at FROM mine").fetchall() == [(now - 89 * day,)]
    assert db.execute("SELECT count(*) FROM timeless").fetchone() == (2,)
    db.close()


def test_what_is_neither_worker_nor_function_is_refused():
    assert load_strategy("supervisor.strategy.pair:PairStrategy").__name__ == "PairStrategy"
    with pytest.raises(TypeError, match="neither a CycleWorker nor a function"):
        worker_class("a string")


@pytest.mark.parametrize(
    ("message", "command"),
    [("SHUTDOWN", "SHUTDOWN"), ("SHUTDOWN A", "SHUTDOWN"), ("SHUTDOWN B", None), ("RESTART A\n", "RESTART")],
)
def test_a_control_message_without_a_key_is_for_everybody(message, command):
    assert command_for(message, "A") == command
