"""A client with one connection per thread: no pool, no retries, no telemetry between a job and the server.

A job costs one round trip, so what the client adds to it is most of what a job costs. Whoever calls
through `Store` sees a lost connection as `TryLater` and decides about trying again.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import redis

_IDLE_S = 0.5  # a connection unused for longer is looked at before it is trusted


class DirectClient:
    """What `Store` needs of a client: single commands go straight to this thread's own connection."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._local = threading.local()

    def execute_command(self, *words: Any) -> Any:
        connection = self._connection()
        now = time.monotonic()
        try:
            if now - self._local.used > _IDLE_S and connection.is_connected and connection.can_read():
                connection.disconnect()  # the server hung up while we were away: start afresh, at no cost
            self._local.used = now
            connection.send_command(*words)
            return connection.read_response()
        except redis.ResponseError:
            raise  # the answer was an error, but it was read: the connection is in step
        except BaseException:
            connection.disconnect()  # an unread answer would be taken for the next one's
            raise

    def pipeline(self, transaction: bool) -> Any:
        return self._client.pipeline(transaction=transaction)

    def script_load(self, source: str) -> Any:
        return self._client.script_load(source)

    def _connection(self) -> Any:
        pid, connection = getattr(self._local, "of", (0, None))
        if pid != os.getpid():  # a forked child must not share its parent's socket
            connection = self._client.connection_pool.make_connection()
            self._local.of = (os.getpid(), connection)
            self._local.used = time.monotonic()
        return connection
