"""One round trip to Valkey: any number of atomic steps, each a Lua file, each with a typed answer.

A `Step` only describes a call; building one talks to nobody. `Store.run` sends the steps it is given
in ONE round trip and returns their parsed answers in order, so a use case shows its round trips as
its calls of `run`. Steps of one call are atomic one by one, not together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, OutOfMemoryError, ReadOnlyError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from muster.blueprint import REPLICA_WAIT
from muster.errors import TryLater
from muster.wire import exchange, is_plain

T = TypeVar("T")

_LUA = Path(__file__).parent / "lua"
_AWAY = (RedisConnectionError, RedisTimeoutError, ReadOnlyError, OutOfMemoryError)
#: A server that is there and takes no write: its disk is full, or too few replicas listen. Nothing was done.
_NO_WRITES = ("MISCONF", "NOREPLICAS")


class Step(NamedTuple, Generic[T]):
    """One atomic step: a Lua file, or one plain command when `script` is None.

    A `_prelude.lua` in the script's folder is put before it: functions that several steps share.
    """

    script: Path | None
    keys: tuple[str, ...]
    args: tuple[Any, ...]
    parse: Callable[[Any], T]


def lua(name: str, keys: Sequence[str], args: Sequence[Any], parse: Callable[[Any], T]) -> Step[T]:
    """A step of `muster/lua/<name>.lua`. Every key the script touches must be in `keys`, in one slot."""
    return Step(_script(name), tuple(keys), tuple(args), parse)


@cache
def _script(name: str) -> Path:
    return _LUA / f"{name}.lua"


def command(*words: Any, parse: Callable[[Any], T]) -> Step[T]:
    """A plain command as a step, so that it can share a round trip with scripts."""
    return Step(None, (), words, parse)


@cache
def _source(script: Path) -> tuple[str, str]:
    prelude = script.with_name("_prelude.lua")
    text = (prelude.read_text(encoding="utf-8") if prelude.exists() else "") + script.read_text(
        encoding="utf-8"
    )
    return text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()


def read_ahead() -> None:
    """Read every script of the core now, for a process whose first step must not wait for a disk."""
    for script in _LUA.glob("[!_]*.lua"):
        _source(_script(script.stem))


def text(value: Any) -> str:
    """A reply as text, whatever the client's decoding."""
    return value.decode() if isinstance(value, bytes) else str(value)


def tagged(reply: Any) -> tuple[str, ...]:
    """A script's tagged answer (`{'taken', ...}`) as strings."""
    return tuple(text(part) for part in reply)


def fields(reply: Any) -> dict[str, str]:
    """A hash reply (flat list or mapping) as a dict of strings."""
    if not reply:
        return {}
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    found = dict(pairs)
    if all(type(word) is str for word in found.values()):  # as a decoding client gives them: nearly always
        return found
    return {text(name): text(value) for name, value in found.items()}


class Store:
    """Runs steps on a redis-py compatible client: standalone, cluster or fakeredis.

    Raises `TryLater` when Valkey is away, or takes no write for now (its memory or disk is full): whether the
    steps ran is then unknown, and every step is written so that running it again is safe.
    """

    def __init__(self, client: Any, *, wait_replica: bool = False) -> None:
        self.client = client
        self._plain = is_plain(client)
        self._wait_replica = wait_replica
        #: Durable steps that no replica had confirmed in time, on a store that can lose writes.
        self.unconfirmed = 0

    def one(self, step: Step[T]) -> T:
        """Run one step in one round trip."""
        try:
            return step.parse(self.client.execute_command(*words_of(step)))
        except NoScriptError:
            return self.run(step)[0]  # type: ignore[no-any-return]
        except _AWAY as away:
            raise _later(away) from away
        except ResponseError as refused:
            if _takes_no_write(refused):
                raise _later(refused) from refused
            raise

    def run_durably(self, *steps: Step[Any]) -> list[Any]:
        """As `run`, for the steps that fence: where the store can lose writes, wait for a replica too.

        WAIT rides in the same round trip. It bounds the loss of a failover; it does not exclude it.
        """
        if not self._wait_replica or not steps:
            return self.run(*steps)
        *answers, replicas = self.run(
            *steps, command("WAIT", 1, round(REPLICA_WAIT.total_seconds() * 1000), parse=int)
        )
        self.unconfirmed += replicas < 1
        return answers

    def run(self, *steps: Step[Any]) -> list[Any]:
        """Run the steps in one round trip; their parsed answers, in order."""
        if not steps:
            return []
        try:
            replies = self._send(steps)
            missing = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if missing:
                for script in {s.script for i in missing if (s := steps[i]).script}:
                    self.client.script_load(_source(script)[0])
                again = self._send([steps[i] for i in missing])
                for i, reply in zip(missing, again, strict=True):
                    replies[i] = reply
        except _AWAY as away:
            raise _later(away) from away
        for reply in replies:
            # A script that is gone again right after it was loaded: the server was replaced in between.
            if isinstance(reply, (*_AWAY, NoScriptError)) or _takes_no_write(reply):
                raise _later(reply) from reply
            if isinstance(reply, Exception):
                raise reply
        return [step.parse(reply) for step, reply in zip(steps, replies, strict=True)]

    def _send(self, steps: Sequence[Step[Any]]) -> list[Any]:
        if self._plain:
            return exchange(self.client, [words_of(step) for step in steps])
        if len(steps) == 1:
            try:
                return [self.client.execute_command(*words_of(steps[0]))]
            except NoScriptError as missing:
                return [missing]
        pipe = self.client.pipeline(transaction=False)
        for step in steps:
            pipe.execute_command(*words_of(step))
        return list(pipe.execute(raise_on_error=False))


def _later(why: Exception) -> TryLater:
    return TryLater(f"Valkey is away ({why}); the command comes back by itself")


def _takes_no_write(reply: Any) -> bool:
    return isinstance(reply, ResponseError) and str(reply).startswith(_NO_WRITES)


def words_of(step: Step[Any]) -> tuple[Any, ...]:
    """The command that a step is."""
    if step.script is None:
        return step.args
    return ("EVALSHA", _source(step.script)[1], len(step.keys), *step.keys, *step.args)
