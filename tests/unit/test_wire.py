"""Many commands in one write: the same answers as a pipeline of the client, and nothing left on the line."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as Away
from redis.exceptions import NoScriptError, ResponseError
from redis.retry import Retry

from local.valkey import EmbeddedValkey
from muster.wire import exchange, is_plain

COMMANDS: list[tuple[Any, ...]] = [
    ("SET", "w:text", "ä b"),
    ("GET", "w:text"),
    ("GET", "w:none"),
    ("HSET", "w:hash", "one", 1, "half", 0.5),
    ("HGETALL", "w:hash"),
    ("HMGET", "w:hash", "one", "none"),
    ("SADD", "w:set", "a", "b"),
    ("SMEMBERS", "w:set"),
    ("ZADD", "w:zset", 1, "a", 2, "b"),
    ("ZRANGE", "w:zset", 0, -1, "WITHSCORES"),
    ("EXPIRE", "w:set", 60),
    ("XADD", "w:stream", "1-1", "field", "value"),
    ("XREVRANGE", "w:stream", "+", "-"),
    ("EVAL", "return {1, 'two', {}, redis.call('HGETALL', KEYS[1])}", 1, "w:hash"),
]


def test_it_answers_as_a_pipeline_of_the_client_does(valkey: redis.Redis) -> None:
    pipe = valkey.pipeline(transaction=False)
    for words in COMMANDS:
        pipe.execute_command(*words)
    expected = pipe.execute()
    valkey.flushdb()
    assert exchange(valkey, COMMANDS) == expected


def test_an_error_is_in_its_place_and_the_others_are_answered(valkey: redis.Redis) -> None:
    valkey.set("w:text", "word")
    first, wrong, missing, last = exchange(
        valkey, [("GET", "w:text"), ("LPUSH", "w:text", "x"), ("EVALSHA", "0" * 40, 0), ("GET", "w:text")]
    )
    assert (first, last) == ("word", "word")
    assert type(wrong) is ResponseError
    assert isinstance(missing, NoScriptError)


def test_a_connection_that_was_cut_is_made_again_as_often_as_the_client_would(
    valkey_server: EmbeddedValkey,
) -> None:
    patient = valkey_server.client(retry=Retry(NoBackoff(), 1))
    hasty = valkey_server.client(retry=Retry(NoBackoff(), 0))
    for client in (patient, hasty):
        client.set("w:text", "word")
    [me] = exchange(patient, [("CLIENT", "ID")])
    # The server ends the very connection that asked, before the second answer.
    kill = ("CLIENT", "KILL", "ID", me, "SKIPME", "no")
    assert exchange(patient, [kill, ("GET", "w:text")]) == [0, "word"]  # asked twice: the first one is gone
    [me] = exchange(hasty, [("CLIENT", "ID")])
    with pytest.raises(Away):
        exchange(hasty, [("CLIENT", "KILL", "ID", me, "SKIPME", "no"), ("GET", "w:text")])
    assert exchange(hasty, [("GET", "w:text")]) == ["word"]


def test_replies_that_were_not_read_do_not_meet_the_next_caller(
    valkey: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    valkey.mset({"w:1": "one", "w:2": "two"})
    connection_class = valkey.connection_pool.connection_class
    read, times = connection_class.read_response, iter(range(99))

    def interrupted(self: Any, *words: Any, **options: Any) -> Any:
        if next(times) == 1:
            raise KeyboardInterrupt
        return read(self, *words, **options)

    with monkeypatch.context() as patched:
        patched.setattr(connection_class, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            exchange(valkey, [("GET", "w:1"), ("GET", "w:1")])
    assert exchange(valkey, [("GET", "w:2")]) == ["two"]
    assert valkey.connection_pool.get_connection_count()[1][0] == 0  # none is still in use


def test_only_a_client_of_one_real_server_is_plain(valkey: redis.Redis) -> None:
    import fakeredis

    assert is_plain(valkey)
    assert not is_plain(fakeredis.FakeRedis(server=fakeredis.FakeServer()))
