"""A connection to Valkey that counts, for benches and tests of what an operation costs."""

from __future__ import annotations

from typing import Any

import redis


class CountedConnection(redis.Connection):
    """Counts what goes out from this process: a command, or all commands of a pipeline together."""

    sent = 0

    def send_packed_command(self, command: Any, check_health: bool = True) -> None:
        CountedConnection.sent += 1
        super().send_packed_command(command, check_health)


def counted(client: Any) -> Any:
    """The same client; its connections, none made yet, count."""
    client.connection_pool.connection_class = CountedConnection
    return client
