"""The keys a supervisor and its workers share, under one prefix.

| key | type, TTL | content |
| --- | --- | --- |
| `<prefix>:orchestrator:lock` | string, 60 s | the one running supervisor |
| `<prefix>:workers` | set, none | keys that have, or should have, a worker |
| `<prefix>:stopped` | set, none | keys a person stopped: a successor must not start them |
| `<prefix>:worker:<key>:lock` | string, 15 min | the one process that may act for the key |
| `<prefix>:worker:<key>:heartbeat` | string, 45 s | Unix time in ms of the last beat |
| `<prefix>:worker:<key>:state` | JSON, 60 s | what the worker last published |
| `<prefix>:worker:<key>:restarting` | flag, 60 s | respawn now, without backoff |
| `<prefix>:control` | pub/sub | `SHUTDOWN [key]`, `RESTART [key]`; without a key, every worker |
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of one fleet."""

    prefix: str = "muster"

    @property
    def supervisor_lock(self) -> str:
        return f"{self.prefix}:orchestrator:lock"

    @property
    def workers(self) -> str:
        return f"{self.prefix}:workers"

    @property
    def stopped(self) -> str:
        return f"{self.prefix}:stopped"

    @property
    def control(self) -> str:
        return f"{self.prefix}:control"

    def lock(self, key: str) -> str:
        return f"{self.prefix}:worker:{key}:lock"

    def heartbeat(self, key: str) -> str:
        return f"{self.prefix}:worker:{key}:heartbeat"

    def state(self, key: str) -> str:
        return f"{self.prefix}:worker:{key}:state"

    def restarting(self, key: str) -> str:
        return f"{self.prefix}:worker:{key}:restarting"


SHUTDOWN = "SHUTDOWN"  #: finish the cycle, release the lock, exit
RESTART = "RESTART"  #: the same, and leave the flag that asks for a respawn at once


def control_message(command: str, key: str | None = None) -> str:
    """The text of a control message; without a key it is for every worker."""
    return f"{command} {key}" if key else command


def command_for(message: str, key: str) -> str | None:
    """The command in `message` if it is meant for `key`."""
    command, _, target = message.strip().partition(" ")
    return command if target.strip() in ("", key) else None
