"""Many commands in one round trip, on a plain connection of a client.

A pipeline of the client does the same; for a crowd of small commands most of its time goes into what it could
do besides (transactions, watches, events, metrics of its own). Here is one write and the reading of the
replies, through the same pool, the same reconnects and the same retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import redis
from hiredis import pack_command
from redis.exceptions import ResponseError

#: What a connection may need besides being opened.
_MORE = ("credential_provider", "username", "password", "db")


@dataclass(frozen=True, slots=True)
class Address:
    """A server, and how long it may take to answer."""

    host: str
    port: int
    timeout_s: float


def is_plain(client: Any) -> bool:
    """Does this client talk to one server, by real connections? (A cluster's client, a fake and the
    simulator's each have a pipeline of their own.)"""
    return type(client) is redis.Redis


def plain_address(client: Any) -> Address | None:
    """Where a connection needs no more than to be opened: one server, no TLS, no sign-in, database 0."""
    if not is_plain(client):
        return None
    pool = client.connection_pool
    told = pool.connection_kwargs
    if pool.connection_class is not redis.Connection or any(told.get(name) for name in _MORE):
        return None
    return Address(told["host"], told["port"], told["socket_timeout"])


def exchange(client: redis.Redis, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send all, then read all replies. An error reply is in its place, not raised; a connection that fails is
    tried again as often as the client would, with all of the commands. Their names are one word each, in
    capitals."""
    # What the client makes of a reply (a set of SMEMBERS). Past its own look-up, which folds the case.
    shape_of = partial(dict.get, client.response_callbacks)
    packed = b"".join(map(pack_command, commands))
    pool = client.connection_pool
    connection: Any = pool.get_connection()

    def once() -> list[Any]:
        connection.send_packed_command((packed,))
        read = connection.read_response
        replies: list[Any] = []
        for words in commands:
            try:
                reply = read()
            except ResponseError as refused:
                replies.append(refused)
            else:
                shape = shape_of(words[0])
                replies.append(reply if shape is None else shape(reply))
        return replies

    try:
        answered: list[Any] = connection.retry.call_with_retry(once, lambda _: connection.disconnect())
    except BaseException:
        connection.disconnect()  # replies that nobody reads must not meet the next caller
        raise
    finally:
        pool.release(connection)
    return answered
