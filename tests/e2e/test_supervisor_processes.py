"""Supervisors and workers as real processes against a real server."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.signing import OperatorAuth
from local.valkey import embedded_valkey, free_port
from supervisor import config
from tests.e2e.supervised_host import PATIENCE, Host, until


@pytest.fixture
def host(tmp_path, valkey_server, valkey, monkeypatch) -> Iterator[Callable[..., Host]]:
    monkeypatch.syspath_prepend(tmp_path)  # the test reads the file as the supervisor does
    made: list[Host] = []

    def make(timings: str = "", url: str = valkey_server.url, client: Any = valkey) -> Host:
        made.append(Host(tmp_path, url, client, timings))
        return made[-1]

    yield make
    for each in made:
        each.clear()


def test_of_ten_supervisors_one_runs_and_its_successor_adopts_the_workers(host):
    box = host()
    box.write({"A": {}, "B": {}, "C": {}})
    ten = [box.supervise() for _ in range(10)]
    until("nine have left", lambda: sum(p.poll() is not None for p in ten) == 9)
    [winner] = [p for p in ten if p.poll() is None]
    for number, process in enumerate(ten):
        if process is not winner:
            assert process.returncode == 4
            assert f"another supervisor is running: pid {winner.pid} on " in box.log(number)
    before = until("three workers", lambda: box.beating("A", "B", "C"))

    winner.kill()
    winner.wait()
    box.write({"A": {}, "B": {"interval_sec": 77}})  # while nobody watches: B changed, C removed
    box.supervise()
    until("B replaced", lambda: box.holder("B") not in (None, before["B"]))
    until("C gone", lambda: before["C"] not in box.processes())
    assert box.holder("A") == before["A"], "an unchanged worker is adopted, not replaced"
    until("the set is right", lambda: box.client.smembers(f"{box.prefix}:workers") == {"A", "B"})

    os.kill(before["A"], signal.SIGKILL)  # an adopted worker is watched like a child
    until("its exit was seen", lambda: "A: exited (adopted" in box.log())
    assert box.stop() == 0
    assert box.processes() == {}
    assert box.client.get(f"{box.prefix}:orchestrator:lock") is None
    box.assert_no_lock_was_held_twice()


def test_a_killed_a_frozen_and_an_exiting_worker_are_handled_as_the_rules_say(host):
    box = host(
        "health_every=0.2 heartbeat_every=0.5 heartbeat_ttl=3 silent_after=6 "
        "backoff_first=0.1 backoff_max=0.2"
    )
    box.write({"KILLED": {}, "FROZEN": {}, "EXITS": {"strategy": "strategies_of_test:exits"}})
    box.supervise()
    before = until("both run", lambda: box.beating("KILLED", "FROZEN"))

    os.kill(before["FROZEN"], signal.SIGSTOP)
    os.kill(before["KILLED"], signal.SIGKILL)
    until("the killed one is back", lambda: box.holder("KILLED") not in (None, before["KILLED"]))
    assert "KILLED: killed by SIGKILL" in box.log()
    assert "KILLED: exited; next try in 0.1 s" in box.log()

    until("the frozen one is back", lambda: box.holder("FROZEN") not in (None, before["FROZEN"]))
    assert re.search(rf"FROZEN: pid {before['FROZEN']} killed: no heartbeat for", box.log())

    until("the exiting one is given up", lambda: "EXITS: given up after 20 failures in a row" in box.log())
    assert box.log().count("EXITS: exited with 3") == 20
    assert box.log().count("EXITS: started as pid") == 20
    assert box.stop() == 0
    box.assert_no_lock_was_held_twice()


def test_after_twenty_reloads_of_fifty_keys_the_processes_equal_the_file(host):
    box = host()
    draw = random.Random(6)
    workers: dict[str, dict] = {f"K{n:02}": {} for n in range(50)}
    box.write(workers)
    supervisor = box.supervise()
    until("it runs", lambda: "supervising 50 workers" in box.log())
    for turn in range(20):
        for change in draw.choices(["add", "remove", "change"], k=2):
            key = draw.choice(sorted(workers))
            if change == "add":
                workers[f"K{draw.randrange(50, 60)}"] = {}
            elif change == "remove":
                del workers[key]
            else:
                workers[key] = {"interval_sec": 1000 + turn}
        box.write(workers)
        supervisor.send_signal(signal.SIGHUP)
        until(f"reload {turn}", lambda: box.log().count("read again") == turn + 1)  # noqa: B023

    wanted = Counter((spec.key, spec.text()) for spec in config.load(box.file).values())
    until("the processes equal the file", lambda: Counter(box.processes().values()) == wanted)
    until("every one holds its lock", lambda: box.beating(*workers), patience=100)
    assert Counter(box.processes().values()) == wanted
    assert {box.holder(key) for key in workers} == set(box.processes())

    box.file.write_text("workers: [{key: ../../etc}]")
    supervisor.send_signal(signal.SIGHUP)
    until("a broken file is refused", lambda: "reload refused, the old set keeps running" in box.log())
    assert Counter(box.processes().values()) == wanted
    assert box.stop() == 0
    assert box.processes() == {}
    box.assert_no_lock_was_held_twice()


def test_an_emptied_server_is_told_again_by_every_worker_and_none_runs_twice(host, tmp_path):
    port = free_port()
    keys = [f"K{n:02}" for n in range(20)]
    with embedded_valkey(tmp_path / "first", port=port) as server:
        client = server.client()
        box = host("health_every=1", url=server.url, client=client)
        box.write({key: {} for key in keys})
        box.supervise()
        before = until("twenty workers", lambda: box.beating(*keys))
        server.kill()
    with embedded_valkey(tmp_path / "second", port=port):
        after = until("twenty locks again", lambda: box.beating(*keys))
        assert after == before
        until("the supervisor's lock, too", lambda: client.get(f"{box.prefix}:orchestrator:lock"))
        assert set(box.processes()) == set(before.values())
        assert box.stop() == 0
        client.close()
    assert all(len(box.ownership(key)) == 1 for key in keys), "nobody else ever held a lock"


def test_the_api_of_a_running_supervisor_shows_restarts_and_stops(host):
    box = host()
    box.write({"A": {}, "B": {}})
    box.supervise()
    before = until("both run", lambda: box.beating("A", "B"))
    url = re.search(r"API on (http://\S+),", box.log())[1]
    with httpx.Client(base_url=url, auth=OperatorAuth(box.folder / ".muster/supervisor"), timeout=30) as api:
        assert api.get("/v1/workers/A").json()["pid"] == before["A"]
        assert api.post("/v1/workers/A/restart").status_code == 202
        until("A restarted", lambda: box.holder("A") not in (None, before["A"]))
        assert api.post("/v1/workers/B/stop").status_code == 202
        until("B stopped", lambda: api.get("/v1/workers/B").json()["phase"] == "stopped")
        until("A is ready", lambda: api.get("/v1/workers/A").json()["phase"] == "ready")
        box.write({"A": {}, "B": {}, "C": {}})
        assert api.post("/v1/reload").status_code == 200
        until("C runs", lambda: box.beating("C"))
    assert httpx.get(f"{url}/v1/workers").status_code == 401
    assert {key for key, _ in box.processes().values()} == {"A", "C"}


def test_a_supervisor_killed_while_its_workers_boot_is_followed_without_doubles(host):
    box = host("backoff_first=0.5")
    keys = ("A", "B", "C", "D")
    box.write({key: {} for key in keys})
    first = box.supervise()
    until("they boot", lambda: len(box.processes()) == 4)
    first.kill()
    first.wait()
    box.supervise()
    until("all beat", lambda: box.beating(*keys))
    until("one process each", lambda: sorted(key for key, _ in box.processes().values()) == sorted(keys))
    until(
        "all under the successor's eyes",
        lambda: all(re.search(rf"{k}: (adopted|started as) pid {box.holder(k)}\b", box.log()) for k in keys),
    )
    assert box.stop() == 0
    assert box.processes() == {}
    box.assert_no_lock_was_held_twice()


def test_a_worker_started_by_hand_beside_a_running_one_leaves(host):
    box = host()
    box.write({"A": {}})
    box.supervise()
    before = until("A runs", lambda: box.beating("A"))
    environment = dict(
        v.split("=", 1) for v in Path(f"/proc/{before['A']}/environ").read_text().split("\0") if "=" in v
    )
    second = subprocess.run(
        [sys.executable, "-m", "worker.cycle_main", "A"],
        cwd=box.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert second.returncode == 4
    assert f"pid {before['A']} on " in second.stderr
    assert box.holder("A") == before["A"]
