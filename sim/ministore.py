"""The store of the simulator: the real Lua steps on plain dictionaries and virtual time.

fakeredis runs these scripts in about a millisecond each, this in a tenth of that, which is what makes ten
thousand histories affordable. `tests/simulation` runs the same seeds on both and compares the traces byte for
byte, so this store is fast, not different. Only the commands that the steps use exist.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from lupa.lua51 import LuaRuntime, lua_type  # type: ignore[import-untyped]
from redis.exceptions import NoScriptError

_lua = LuaRuntime(unpack_returned_tuples=False)
_table = _lua.table_from
_compiled: dict[str, Any] = {}
_running: list[MiniStore] = []
_NULL = _lua.table()  # what cjson calls null: equal to nothing but itself


class _Set(dict[str, None]):
    def copy(self) -> _Set:
        return _Set(self)


class _Stream(dict[str, list[str]]):
    """Entries by id, oldest first; `last` is the newest id there ever was."""

    last = (0, 0)

    def copy(self) -> _Stream:
        copied = _Stream(self)
        copied.last = self.last
        return copied


class _ZSet(dict[str, float]):
    def copy(self) -> _ZSet:
        return _ZSet(self)

    def ordered(self) -> list[str]:
        return sorted(self, key=lambda member: (self[member], member))


def _call(*words: Any) -> Any:
    return _to_lua(_running[-1].execute([w if type(w) is str else _number(w) for w in words]))


def _number(value: Any) -> str:
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else format(value, ".17g")
    return value.decode() if isinstance(value, bytes) else str(value)


def _to_lua(reply: Any) -> Any:
    if reply is None:
        return False
    if type(reply) is list:
        return _table([_to_lua(part) for part in reply])
    return reply


def _from_lua(value: Any) -> Any:
    if lua_type(value) == "table":
        return [_from_lua(value[i]) for i in range(1, len(value) + 1)]
    if value is False:
        return None
    return int(value) if isinstance(value, (float, bool)) else value


_lua.execute("redis = {}; cjson = {}")
_lua.globals().redis.call = _call
_lua.globals().cjson.encode = lambda table: json.dumps(dict(table))
_lua.globals().cjson.null = _NULL
_lua.globals().cjson.decode = lambda text: _table(
    {key: _NULL if value is None else value for key, value in json.loads(text).items()}
)


class MiniStore:
    """One server. `execute` is one atomic command; `snapshot` and `restore` make a failover."""

    def __init__(self, now: Callable[[], float], publish: Callable[[str, str], None]) -> None:
        self._now = now
        self._publish = publish
        self._data: dict[str, Any] = {}
        self._expires: dict[str, int] = {}
        self._scripts: set[str] = set()

    def snapshot(self) -> tuple[dict[str, Any], dict[str, int]]:
        copied = {key: value if type(value) is str else value.copy() for key, value in self._data.items()}
        return copied, dict(self._expires)

    def restore(self, snapshot: tuple[dict[str, Any], dict[str, int]]) -> None:
        """Become the replica that had seen no more than this. Loaded scripts are lost too."""
        self._data, self._expires = snapshot
        self._scripts.clear()

    def peek(self, key: str) -> Any:
        """A value as an auditor sees it, without a command."""
        return self._live(key)

    def execute(self, words: Any) -> Any:
        name = words[0]
        method = _COMMANDS.get(name)
        if method is None:
            raise NotImplementedError(f"{name}: add it to the simulator's store")
        return method(self, *[w if type(w) is str else str(w) for w in words[1:]])

    def script_load(self, source: str) -> str:
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        if sha not in _compiled:
            _compiled[sha] = _lua.execute(f"return function(KEYS, ARGV) {source}\nend")
        self._scripts.add(sha)
        return sha

    def _ms(self) -> int:
        return int(self._now() * 1000)

    def _live(self, key: str) -> Any:
        expires = self._expires.get(key)
        if expires is not None and expires <= self._ms():
            del self._expires[key]
            self._data.pop(key, None)
        return self._data.get(key)

    def _make(self, key: str, kind: type) -> Any:
        value = self._live(key)
        if value is None:
            value = self._data[key] = kind()
        return value

    def _tidy(self, key: str) -> None:
        if not self._data[key]:
            self._drop(key)

    def _drop(self, key: str) -> int:
        self._expires.pop(key, None)
        return int(self._data.pop(key, None) is not None)

    def evalsha(self, sha: str, count: str, *rest: str) -> Any:
        if sha not in self._scripts:
            raise NoScriptError("NOSCRIPT No matching script. Please use EVAL.")
        keys = int(count)
        _running.append(self)
        try:
            return _from_lua(_compiled[sha](_table(rest[:keys]), _table(rest[keys:])))
        finally:
            _running.pop()

    def time(self) -> list[str]:
        micros = int(self._now() * 1_000_000)
        return [str(micros // 1_000_000), str(micros % 1_000_000)]

    def publish(self, channel: str, body: str) -> int:
        self._publish(channel, body)
        return 0

    def get(self, key: str) -> Any:
        return self._live(key)

    def mget(self, *keys: str) -> list[Any]:
        return [self._live(key) for key in keys]

    def set(self, key: str, value: str, *options: str) -> str:
        self._data[key] = value
        self._expires.pop(key, None)
        if options:
            unit, amount = options
            self._expires[key] = self._ms() + int(amount) * (1000 if unit == "EX" else 1)
        return "OK"

    def getdel(self, key: str) -> Any:
        value = self._live(key)
        self._drop(key)
        return value

    def delete(self, *keys: str) -> int:
        return sum(self._drop(key) for key in keys if self._live(key) is not None)

    def exists(self, key: str) -> int:
        return int(self._live(key) is not None)

    def pexpire(self, key: str, ms: str) -> int:
        if self._live(key) is None:
            return 0
        self._expires[key] = self._ms() + int(ms)
        return 1

    def expire(self, key: str, seconds: str) -> int:
        return self.pexpire(key, str(int(seconds) * 1000))

    def pttl(self, key: str) -> int:
        if self._live(key) is None:
            return -2
        return self._expires[key] - self._ms() if key in self._expires else -1

    def hset(self, key: str, *pairs: str) -> int:
        value = self._make(key, dict)
        before = len(value)
        value.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(value) - before

    def hsetnx(self, key: str, field: str, word: str) -> int:
        value = self._make(key, dict)
        if field in value:
            return 0
        value[field] = word
        return 1

    def hget(self, key: str, field: str) -> Any:
        return (self._live(key) or {}).get(field)

    def hmget(self, key: str, *wanted: str) -> list[Any]:
        value = self._live(key) or {}
        return [value.get(field) for field in wanted]

    def hgetall(self, key: str) -> list[str]:
        return [word for pair in (self._live(key) or {}).items() for word in pair]

    def hvals(self, key: str) -> list[str]:
        return list((self._live(key) or {}).values())

    def hdel(self, key: str, *unwanted: str) -> int:
        value = self._live(key)
        if value is None:
            return 0
        gone = sum(value.pop(field, None) is not None for field in unwanted)
        self._tidy(key)
        return gone

    def hincrby(self, key: str, field: str, by: str) -> int:
        value = self._make(key, dict)
        value[field] = str(int(value.get(field, "0")) + int(by))
        return int(value[field])

    def sadd(self, key: str, *members: str) -> int:
        value = self._make(key, _Set)
        before = len(value)
        value.update(dict.fromkeys(members))
        return len(value) - before

    def srem(self, key: str, *members: str) -> int:
        value = self._live(key)
        if value is None:
            return 0
        before = len(value)
        for member in members:
            value.pop(member, None)
        gone = before - len(value)
        self._tidy(key)
        return gone

    def smembers(self, key: str) -> list[str]:
        return sorted(self._live(key) or ())

    def scard(self, key: str) -> int:
        return len(self._live(key) or ())

    def zadd(self, key: str, *pairs: str) -> int:
        value = self._make(key, _ZSet)
        before = len(value)
        for score, member in zip(pairs[::2], pairs[1::2], strict=True):
            value[member] = float(score)
        return len(value) - before

    def zpopmin(self, key: str, count: str) -> list[str]:
        value = self._live(key) or _ZSet()
        members = value.ordered()[: int(count)]
        popped = [word for member in members for word in (member, _number(value.pop(member)))]
        if members:
            self._tidy(key)
        return popped

    def zrem(self, key: str, *members: str) -> int:
        return self.srem(key, *members)

    def zscore(self, key: str, member: str) -> Any:
        score = (self._live(key) or {}).get(member)
        return None if score is None else _number(score)

    def zcard(self, key: str) -> int:
        return len(self._live(key) or ())

    def zrange(self, key: str, start: str, stop: str, *options: str) -> list[str]:
        value = self._live(key) or _ZSet()
        if "BYLEX" in options:
            assert options == ("BYLEX", "REV", "LIMIT", "0", options[-1]), options
            return self._between(value, stop, start)[::-1][: int(options[-1])]
        ordered = value.ordered()
        members = ordered[int(start) :] if stop == "-1" else ordered[int(start) : int(stop) + 1]
        if options != ("WITHSCORES",):
            return members
        return [word for member in members for word in (member, _number(value[member]))]

    def zrangebyscore(self, key: str, low: str, high: str, *limit: str) -> list[str]:
        value = self._live(key) or _ZSet()
        least, most = float(low), float(high.removeprefix("("))
        found = [m for m in value.ordered() if least <= value[m] <= most]
        if high.startswith("("):
            found = [m for m in found if value[m] < most]
        return found[: int(limit[2])] if limit else found

    def zrangebylex(self, key: str, low: str, high: str, *limit: str) -> list[str]:
        return self._between(self._live(key) or _ZSet(), low, high)[: int(limit[2])]

    @staticmethod
    def _between(value: _ZSet, low: str, high: str) -> list[str]:
        """Members by name; a border is `-`, `+` or `(name`, which is not among them."""
        above, below = low.removeprefix("("), high.removeprefix("(")
        return [m for m in sorted(value) if (low == "-" or m > above) and (high == "+" or m < below)]

    def zremrangebyscore(self, key: str, low: str, high: str) -> int:
        return self.srem(key, *self.zrangebyscore(key, low, high))

    def zcount(self, key: str, low: str, high: str) -> int:
        return len(self.zrangebyscore(key, low, high))

    def lpush(self, key: str, *words: str) -> int:
        value = self._make(key, list)
        for word in words:
            value.insert(0, word)
        return len(value)

    def rpush(self, key: str, *words: str) -> int:
        value = self._make(key, list)
        value.extend(words)
        return len(value)

    def lpop(self, key: str) -> Any:
        value = self._live(key)
        if not value:
            return None
        word = value.pop(0)
        self._tidy(key)
        return word

    def llen(self, key: str) -> int:
        return len(self._live(key) or ())

    def ltrim(self, key: str, start: str, stop: str) -> str:
        value = self._live(key)
        if value is not None:
            del value[int(stop) + 1 :]
            del value[: int(start)]
            self._tidy(key)
        return "OK"

    def lrange(self, key: str, start: str, stop: str) -> list[str]:
        value = self._live(key) or []
        return list(value[int(start) :] if stop == "-1" else value[int(start) : int(stop) + 1])

    def xadd(self, key: str, id_: str, *pairs: str) -> str:
        assert id_ == "*"
        stream = self._make(key, _Stream)
        last_ms, last_number = stream.last
        stream.last = (self._ms(), 0) if self._ms() > last_ms else (last_ms, last_number + 1)
        name = "{}-{}".format(*stream.last)
        stream[name] = list(pairs)
        return name

    def xlen(self, key: str) -> int:
        return len(self._live(key) or ())

    def xread(self, _count: str, most: str, _streams: str, key: str, after: str) -> list[Any]:
        stream = self._live(key) or {}
        found = [[name, pairs] for name, pairs in stream.items() if _stream_id(name) > _stream_id(after)]
        return [[key, found[: int(most)]]] if found else []

    def xdel(self, key: str, *names: str) -> int:
        stream = self._live(key) or {}
        return sum(stream.pop(name, None) is not None for name in names)

    def wait(self, replicas: str, timeout_ms: str) -> int:
        raise AssertionError(f"WAIT {replicas} {timeout_ms} is the business of whoever knows the replicas")


def _stream_id(name: str) -> tuple[int, int]:
    ms, _, number = name.partition("-")
    return int(ms), int(number)


_COMMANDS: dict[str, Callable[..., Any]] = {
    name.upper(): getattr(MiniStore, name)
    for name in [
        "evalsha",
        "time",
        "publish",
        "get",
        "mget",
        "set",
        "getdel",
        "exists",
        "pexpire",
        "expire",
        "pttl",
        "hset",
        "hsetnx",
        "hget",
        "hmget",
        "hgetall",
        "hvals",
        "hdel",
        "hincrby",
        "sadd",
        "srem",
        "smembers",
        "scard",
        "zadd",
        "zrem",
        "zpopmin",
        "zscore",
        "zcard",
        "zrange",
        "zrangebyscore",
        "zrangebylex",
        "zremrangebyscore",
        "zcount",
        "lpush",
        "rpush",
        "lpop",
        "llen",
        "ltrim",
        "lrange",
        "xadd",
        "xlen",
        "xread",
        "xdel",
        "wait",
    ]
} | {"DEL": MiniStore.delete}
