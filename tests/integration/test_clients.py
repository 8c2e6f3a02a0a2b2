"""Clients of a real server: what they say before the first command, and connections opened ahead."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import redis

from local.valkey import EmbeddedValkey
from muster import keys
from muster.clients import open_ahead, valkey_client
from muster.settings import Settings
from muster.store import Store
from worker.rehearsal import rehearse_store


def connections(valkey: Any) -> int:
    return len(valkey.client_list())


def settings(url: str) -> Settings:
    return Settings(env="test", valkey_url=url)


def test_a_client_opens_its_connection_with_its_first_command_and_no_other_words(
    valkey: Any, valkey_server: EmbeddedValkey
) -> None:
    client = valkey_client(settings(valkey_server.url))
    before = valkey.info("stats")["total_commands_processed"]
    client.get("nothing")
    # The command, and the question for the count.
    assert valkey.info("stats")["total_commands_processed"] - before == 2
    client.close()


def test_connections_that_are_opened_ahead_are_the_ones_used_later(
    valkey: Any, valkey_server: EmbeddedValkey
) -> None:
    client = valkey_client(settings(valkey_server.url))
    before = connections(valkey)
    open_ahead(client, 2)
    assert connections(valkey) == before + 2
    listener = client.pubsub()
    listener.subscribe("c")
    client.get("nothing")
    assert connections(valkey) == before + 2
    listener.close()
    client.close()


def test_a_server_that_is_away_is_left_for_the_first_command_to_notice() -> None:
    client = valkey_client(settings("redis://127.0.0.1:1/0"))
    open_ahead(client, 2)
    with pytest.raises(redis.ConnectionError):
        client.get("nothing")
    client.close()


def test_a_rehearsal_with_the_store_changes_nothing_and_leaves_no_listener(
    valkey: Any, valkey_server: EmbeddedValkey
) -> None:
    valkey.flushall()
    client = valkey_client(settings(valkey_server.url))
    before = valkey.info("stats")["total_commands_processed"]
    rehearse_store(Store(client))
    assert valkey.info("stats")["total_commands_processed"] - before > 2  # it did talk to the server
    assert valkey.dbsize() == 0
    assert valkey.pubsub_numsub(keys.CONTROL) == [(keys.CONTROL, 0)]
    client.close()


def test_a_rehearsal_without_a_store_is_no_error() -> None:
    rehearse_store(Store(valkey_client(settings("redis://127.0.0.1:1/0"))))
    assert not [thread for thread in threading.enumerate() if thread.name == "rehearsal"]
