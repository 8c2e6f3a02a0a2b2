"""Servers the tests need, started by the tests themselves. Nothing here is skipped when one is missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
import redis

from local.valkey import EmbeddedValkey, embedded_valkey
from muster.store import Store


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """One real Valkey server for the whole run; use `valkey` to get it empty."""
    with embedded_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def valkey(valkey_server: EmbeddedValkey) -> Iterator[Any]:
    """A client of the real server, emptied for this test."""
    client = valkey_server.client()
    client.flushall()
    yield client
    client.close()


@pytest.fixture(scope="session")
def cluster_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """A real one-node cluster: scripts that touch a second slot or an undeclared key fail on it."""
    with embedded_valkey(tmp_path_factory.mktemp("cluster"), options=["--cluster-enabled", "yes"]) as server:
        client = server.client()
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        deadline = time.monotonic() + 10
        while client.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
            assert time.monotonic() < deadline, "the one-node cluster did not come up"
            time.sleep(0.01)
        client.close()
        yield server


@pytest.fixture(params=["fakeredis", "valkey", "cluster"])
def any_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The same steps on every kind of store we run on."""
    client: Any
    if request.param == "fakeredis":
        client = fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)
    elif request.param == "valkey":
        client = request.getfixturevalue("valkey_server").client()
    else:
        port = request.getfixturevalue("cluster_server").port
        client = redis.RedisCluster(host="127.0.0.1", port=port, decode_responses=True)
    client.flushall()
    yield Store(client)
    client.close()
