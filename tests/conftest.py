"""Servers the tests need, started by the tests themselves. Nothing here is skipped when one is missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.valkey import EmbeddedValkey, embedded_valkey


@pytest.fixture(scope="session")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """One real Valkey server for the whole run; use `valkey` to get it empty."""
    with embedded_valkey(tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def valkey(valkey_server: EmbeddedValkey) -> Iterator:
    """A client of the real server, emptied for this test."""
    client = valkey_server.client()
    client.flushall()
    yield client
    client.close()
