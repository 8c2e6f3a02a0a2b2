"""The same life on every server the supervisor promises: Valkey 9 and a plain redis-server 7."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from local.valkey import embedded_valkey, free_port
from tests.e2e.supervised_host import Host, until
from worker.cycle_main import connect

#: The server and what it links to, beyond what every Debian has. redis-tools holds the server's program.
DEBIAN_PACKAGES = ("redis-tools", "libjemalloc2", "liblzf1", "libatomic1")
CACHE = Path(__file__).parents[2] / ".muster" / "redis-7"


def _is_redis_7(program: str, environment: dict[str, str]) -> bool:
    answer = subprocess.run(
        [program, "--version"], env=environment, capture_output=True, text=True, check=False
    )
    return re.search(r"Redis server v=7\.", answer.stdout) is not None


def _unpack_from_debian() -> None:
    """Unpack the packages into the cache: needs no root, installs nothing, starts no service."""
    draft = CACHE.with_name(f"redis-7.{os.getpid()}")
    for folder in ("lists/partial", "cache/archives/partial", "packages", "root"):
        (draft / folder).mkdir(parents=True)
    apt = [
        "apt-get",
        "-q",
        "-o",
        f"Dir::State::lists={draft / 'lists'}",
        "-o",
        f"Dir::Cache={draft / 'cache'}",
    ]
    subprocess.run([*apt, "-o", "Debug::NoLocking=1", "update"], check=True, capture_output=True)
    subprocess.run(
        [*apt, "download", *DEBIAN_PACKAGES], cwd=draft / "packages", check=True, capture_output=True
    )
    for package in (draft / "packages").iterdir():
        subprocess.run(["dpkg-deb", "-x", str(package), str(draft / "root")], check=True)
    # One program under several names: it looks at the name it was called by.
    shutil.copy2(draft / "root/usr/bin/redis-check-rdb", draft / "root/usr/bin/redis-server")
    (draft / "root").rename(CACHE)
    shutil.rmtree(draft)


def redis_7() -> tuple[str, dict[str, str]]:
    """The program and its environment: from PATH, else unpacked from the Debian packages."""
    found = shutil.which("redis-server")
    if found and _is_redis_7(found, dict(os.environ)):
        return found, dict(os.environ)
    if not CACHE.exists():
        _unpack_from_debian()
    [libraries] = (CACHE / "usr/lib").glob("*-linux-gnu")
    program, environment = (
        str(CACHE / "usr/bin/redis-server"),
        {**os.environ, "LD_LIBRARY_PATH": str(libraries)},
    )
    assert _is_redis_7(program, environment), f"{program} is no Redis 7; put one on PATH or remove {CACHE}"
    return program, environment


def _ping(port: int) -> bool:
    with connect(f"redis://127.0.0.1:{port}/0", retries=0) as client:
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            return False


@pytest.fixture(params=["valkey 9", "redis 7"])
def server_port(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    if request.param == "valkey 9":
        with embedded_valkey(tmp_path / "server") as server:
            yield server.port
        return
    program, environment = redis_7()
    port = free_port()
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--save", ""],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        until("the server answers", lambda: _ping(port))
        yield port
    finally:
        process.kill()
        process.wait()


def test_the_whole_life_of_a_fleet_is_the_same_on_every_server(request, server_port, tmp_path):
    client = redis.Redis(port=server_port, decode_responses=True)
    version = client.info("server")
    wanted = ("valkey_version", "9.") if "valkey" in request.node.name else ("redis_version", "7.")
    assert version[wanted[0]].startswith(wanted[1])
    box = Host(tmp_path, f"redis://127.0.0.1:{server_port}/0", client)
    try:
        box.write({"A": {}, "B": {}})
        supervisor = box.supervise()
        before = until("two workers", lambda: box.beating("A", "B"))
        name = f"{box.prefix}:worker:A"
        assert 840_000 < client.pttl(f"{name}:lock") <= 900_000
        assert 0 < client.pttl(f"{name}:heartbeat") <= 45_000
        assert 0 < client.pttl(f"{name}:state") <= 60_000
        assert 0 < client.pttl(f"{box.prefix}:orchestrator:lock") <= 60_000
        until("the set of workers", lambda: client.smembers(f"{box.prefix}:workers") == {"A", "B"})

        until("both listen", lambda: client.pubsub_numsub(f"{box.prefix}:control")[0][1] == 2)
        client.publish(f"{box.prefix}:control", "RESTART A")
        until("A restarted without backoff", lambda: box.holder("A") not in (None, before["A"]))
        assert box.holder("B") == before["B"]

        box.write({"B": {}, "C": {}})
        supervisor.send_signal(signal.SIGHUP)
        until("C runs", lambda: box.beating("C"))
        until("A left", lambda: {key for key, _ in box.processes().values()} == {"B", "C"})
        assert box.stop() == 0
        assert box.processes() == {}
        assert client.keys(f"{box.prefix}:*lock") == []
        box.assert_no_lock_was_held_twice()
    finally:
        box.clear()
        client.close()
