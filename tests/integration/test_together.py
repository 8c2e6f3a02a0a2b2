"""The asynchronous face of a store, on a real server: by threads, by a connection of its own, and between."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
import redis

from api import together
from api.pipe import Pipe
from api.together import Together
from local.valkey import EmbeddedValkey
from muster import steps
from muster.clients import valkey_client
from muster.errors import TryLater
from muster.model import Cause
from muster.settings import Settings
from muster.store import Store, command
from muster.wire import plain_address


@pytest.fixture
def store(valkey: Any, valkey_server: EmbeddedValkey) -> Store:
    valkey.flushall()
    return Store(valkey_client(Settings(env="test", valkey_url=valkey_server.url)))


async def connected(asked: Together) -> Pipe:
    """Asked for something, and waited for the connection that this began to open."""
    await asked.one(steps.read_user("nobody"))
    if asked._connecting is not None:
        await asked._connecting
    assert asked._pipe is not None
    return asked._pipe


def start(user: str) -> Any:
    return steps.begin_start(user, Cause.START, 1_000, f"c-{user}", seen_epoch=0)


def test_the_answers_are_those_of_the_threads(store: Store) -> None:
    async def ask() -> None:
        asked = Together(store)
        await connected(asked)
        users = [f"u{number}" for number in range(50)]
        begun = await asyncio.gather(*(asked.one(start(user)) for user in users))
        assert all(one.epoch > 0 for one in begun)
        views = await asyncio.gather(*(asked.one(steps.read_user(user)) for user in users))
        assert [view.epoch for view in views] == [one.epoch for one in begun]
        by_threads = store.run(*(steps.read_user(user) for user in users))
        assert [(v.user, v.want, v.command_id) for v in views] == [
            (v.user, v.want, v.command_id) for v in by_threads
        ]
        assert await asked.one(command("EXISTS", "nothing", parse=int)) == 0

    asyncio.run(ask())


def test_a_crowd_costs_one_write(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask() -> int:
        asked = Together(store)
        pipe = await connected(asked)
        writes = 0
        write = pipe._write

        def counted() -> None:
            nonlocal writes
            writes += 1
            write()

        monkeypatch.setattr(pipe, "_write", counted)
        await asyncio.gather(*(asked.one(steps.read_user(f"u{number}")) for number in range(100)))
        return writes

    assert asyncio.run(ask()) == 1


def test_a_script_that_the_server_has_forgotten_is_told_to_it_again(store: Store, valkey: Any) -> None:
    async def ask() -> int:
        asked = Together(store)
        pipe = await connected(asked)
        valkey.script_flush()
        begun = await asked.one(start("u1"))
        assert asked._pipe is pipe
        return int(begun.epoch)

    assert asyncio.run(ask()) == store.one(steps.read_user("u1")).epoch > 0


def test_what_a_lost_connection_owes_is_answered_all_the_same_and_another_is_opened(
    store: Store, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "_RECONNECT_S", 0.0)

    async def ask() -> None:
        asked = Together(store)
        first = await connected(asked)
        valkey.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        views = await asyncio.gather(*(asked.one(steps.read_user(f"u{number}")) for number in range(20)))
        assert [view.user for view in views] == [f"u{number}" for number in range(20)]
        while asked._pipe is first:
            await asyncio.sleep(0)
        assert await connected(asked) is not first

    asyncio.run(ask())


def test_an_asker_who_has_gone_leaves_the_others_theirs(store: Store) -> None:
    async def ask() -> list[str]:
        asked = Together(store)
        await connected(asked)
        gone, *others = [asked.soon(steps.read_user(f"u{number}")) for number in range(5)]
        gone.cancel()
        return [(await other).user for other in others]

    assert asyncio.run(ask()) == ["u1", "u2", "u3", "u4"]


def test_a_server_that_falls_silent_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]

        async def ask() -> None:
            lost = asyncio.Event()
            left: list[Any] = []
            pipe = Pipe(0.05, left.extend, lost.set)
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: pipe, "127.0.0.1", port)
            answer: asyncio.Future[Any] = loop.create_future()
            pipe.ask((steps.read_user("u1"), answer))
            with pytest.raises(TryLater, match="not answered"):
                await answer
            await lost.wait()
            assert left == []

        asyncio.run(ask())


def test_a_store_that_is_away_is_said_to_be() -> None:
    store = Store(valkey_client(Settings(env="test", valkey_url="redis://127.0.0.1:1/0")))

    async def ask() -> None:
        asked = Together(store)
        with pytest.raises(TryLater, match="away"):
            await asked.one(steps.read_user("u1"))
        assert asked._pipe is None

    asyncio.run(ask())


@pytest.mark.parametrize(
    "client",
    [
        redis.Redis.from_url("rediss://127.0.0.1:1/0"),
        redis.Redis.from_url("redis://user:word@127.0.0.1:1/0"),
        redis.Redis.from_url("redis://127.0.0.1:1/3"),
        redis.Redis.from_url("unix:///nowhere.sock"),
    ],
    ids=["tls", "sign-in", "database", "unix socket"],
)
def test_an_address_that_needs_more_than_a_connection_is_left_to_the_threads(client: Any) -> None:
    assert plain_address(client) is None
