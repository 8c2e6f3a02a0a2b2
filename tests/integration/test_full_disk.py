"""A disk that is full for a while: Valkey takes no write, nobody fails for good, nothing written is lost."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import redis
from botocore.exceptions import ClientError

from local.chaos_faults import Faults, _limit_files
from local.driver import EngineProcess, until
from local.endpoint import LocalAws
from local.trader import Trader
from local.valkey import EmbeddedValkey
from muster.blueprint import ORDER_TASKS
from muster.clients import valkey_client
from muster.errors import TryLater
from muster.jobs.valkey_client import DirectClient
from muster.settings import Settings
from muster.store import Store, command
from tests.order_stand import accept, record, wanted


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    made = EmbeddedValkey(tmp_path / "valkey", persist=True).start()
    yield made
    made.kill()


def refused(store: Store, *, many: bool) -> str:
    write = command("SET", "k", "v", parse=str)
    try:
        store.run(write, write) if many else store.one(write)
    except TryLater as later:
        return str(later)
    return ""


@pytest.mark.parametrize("client", ["plain", "direct"])
@pytest.mark.parametrize("many", [False, True])
def test_a_store_without_room_is_away_for_now_and_comes_back_with_what_it_had(
    server: EmbeddedValkey, client: str, many: bool
) -> None:
    settings = Settings(valkey_url=server.url)
    store = Store(valkey_client(settings) if client == "plain" else DirectClient.from_url(server.url))
    wanted(store)
    accept(store, "before")
    assert server.process is not None
    _limit_files(server.process, 0)
    until(lambda: "MISCONF" in refused(store, many=many), "it has met the end of its disk", 10)
    with pytest.raises(TryLater, match="MISCONF"):
        accept(store, "meanwhile")
    assert record(store, "before").status == "queued", "what it has can be read"
    _limit_files(server.process, None)
    until(lambda: not refused(store, many=many), "it has room again", 10)
    accept(store, "after")
    server.kill()
    server.start()
    store = Store(valkey_client(settings))
    assert [record(store, name).status for name in ("before", "after")] == ["queued", "queued"]


@dataclass
class System:
    """An engine that does nothing, and the two that keep things for it."""

    server: EmbeddedValkey
    aws: LocalAws
    idle: psutil.Popen

    def processes(self) -> list[psutil.Process]:
        found = (self.idle.pid, self.aws.pid, self.server.process and self.server.process.pid)
        return [psutil.Process(pid) for pid in found if pid]

    def strike(self, name: str) -> str:
        engine = SimpleNamespace(
            endpoints={"valkey": self.server.url}, processes=self.processes, process=self.idle
        )
        faults = Faults(cast(EngineProcess, engine), cast(Trader, None), random.Random(1), lambda: None)
        (strike,) = (kind.strike for kind in faults.all() if kind.name == name)
        return strike()


@pytest.fixture
def system(server: EmbeddedValkey, tmp_path: Path) -> Iterator[System]:
    idle = psutil.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    aws = LocalAws(tmp_path).start()
    yield System(server, aws, idle)
    aws.stop()
    idle.kill()
    idle.wait()


def test_a_full_disk_is_met_by_the_store_and_the_queues_and_both_are_whole_after_it(system: System) -> None:
    store = Store(valkey_client(Settings(valkey_url=system.server.url)))
    url = system.aws.ensure_queues()[ORDER_TASKS.name]
    sent: list[str] = []

    def send(body: str) -> bool:
        message = {"MessageBody": body, "MessageGroupId": body, "MessageDeduplicationId": body}
        try:
            system.aws.client("sqs").send_message(QueueUrl=url, **message)
        except ClientError:
            return False
        sent.append(body)
        return True

    assert send("before")
    with ThreadPoolExecutor(1) as other:
        strike = other.submit(system.strike, "full disk")
        until(lambda: "MISCONF" in refused(store, many=False), "Valkey has met the full disk", 10)
        until(lambda: not send(f"m{len(sent)}"), "the queues have met it", 10)
        assert strike.result(30)
    until(lambda: not refused(store, many=False), "Valkey has room", 10)
    assert send("after")
    assert all(process.rlimit(psutil.RLIMIT_FSIZE)[0] != 0 for process in system.processes())
    os.kill(cast(int, system.aws.pid), signal.SIGKILL)
    until(lambda: not system.aws.alive, "it was killed", 10)
    system.aws.restart()
    found: list[str] = []

    def all_found() -> bool:
        got = system.aws.client("sqs").receive_message(QueueUrl=url, MaxNumberOfMessages=10)
        found.extend(message["Body"] for message in got.get("Messages", ()))
        return len(found) >= len(sent)

    until(all_found, "every accepted message", 10)
    assert sorted(found) == sorted(sent), "none that was refused"


def test_an_emptied_valkey_was_killed_and_starts_with_neither_data_nor_scripts(
    system: System,
) -> None:
    server = system.server
    client: Any = server.client()
    client.set("k", "v")
    script = client.script_load("return 1")
    before = cast(psutil.Process, server.process)
    system.strike("empty valkey")
    until(lambda: not server.alive, "it was killed", 10)
    server.start()
    assert server.process != before
    assert (client.dbsize(), client.script_exists(script)) == (0, [False])
    assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
    with pytest.raises(redis.exceptions.NoScriptError):
        client.evalsha(script, 0)
