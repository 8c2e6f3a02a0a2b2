"""A client with one connection per thread: no pool, no retries, no telemetry between a job and the server.

A job costs one round trip, so what the client adds to it is most of what a job costs. redis-py makes the
connection (address, sign-in, TLS); the bytes of a command then go straight through the socket. Whoever calls
through `Store` sees a lost connection as `TryLater` and decides about trying again.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Any

import hiredis
import redis

_IDLE_S = 0.5  # a connection unused for longer is looked at before it is trusted
_READ_BYTES = 65536
_MORE = object()


class DirectClient:
    """What `Store` needs of a client: single commands go straight to this thread's own connection."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._local = threading.local()

    @classmethod
    def from_url(cls, url: str) -> DirectClient:
        # Version 2 of the protocol, where nothing but the answer to a command ever arrives.
        return cls(redis.Redis.from_url(url, decode_responses=True, protocol=2))

    def execute_command(self, *words: Any) -> Any:
        wire = self._wire()
        try:
            reply = wire.ask(words)
        except BaseException as error:
            wire.close()  # an unread answer would be taken for the next one's
            self._local.of = None
            if isinstance(error, OSError):
                raise redis.ConnectionError(f"the connection broke: {error}") from error
            raise
        if isinstance(reply, redis.RedisError):
            raise reply
        return reply

    def pipeline(self, transaction: bool) -> Any:
        return self._client.pipeline(transaction=transaction)

    def script_load(self, source: str) -> Any:
        return self._client.script_load(source)

    def _wire(self) -> _Wire:
        wire: _Wire | None = getattr(self._local, "of", None)
        now = time.monotonic()
        if wire is not None and wire.pid != os.getpid():
            wire = None  # a forked child must not share its parent's socket
        if wire is not None and now - wire.used > _IDLE_S and wire.hung_up():
            wire.close()  # the server went while we were away: start afresh, at no cost
            wire = None
        if wire is None:
            wire = self._local.of = _Wire(self._client.connection_pool.make_connection())
        wire.used = now
        return wire


class _Wire:
    """One open connection and the reader of its answers."""

    def __init__(self, connection: Any) -> None:
        connection.connect()
        self.pid = os.getpid()
        self.used = 0.0
        self._connection = connection
        self._socket = connection._sock
        self._reader = hiredis.Reader(
            encoding="utf-8", errors="replace", notEnoughData=_MORE, replyError=connection._parser.parse_error
        )

    def ask(self, words: tuple[Any, ...]) -> Any:
        self._socket.sendall(hiredis.pack_command(words))
        while True:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("the server closed it")
            self._reader.feed(data)
            reply = self._reader.gets()
            if reply is not _MORE:
                return reply

    def hung_up(self) -> bool:
        look = select.poll()
        look.register(self._socket, select.POLLIN)
        return bool(look.poll(0))  # nothing was asked, so whatever can be read is the end

    def close(self) -> None:
        if self.pid == os.getpid():
            self._connection.disconnect()
