"""Valkey as the system meets it: away, slow, cut off, failing over with or without the last writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError
from redis.exceptions import TimeoutError as RedisTimeoutError

from muster import keys
from sim.ministore import MiniStore

if TYPE_CHECKING:
    from sim.world import World

#: The client gives up waiting for an answer after this; whether the command ran is then unknown.
SOCKET_TIMEOUT_S = 3.0


_SWEEP_DONE = keys.sweep_done("")


class Backend(Protocol):
    """What runs commands: `MiniStore`, or fakeredis where the two are compared."""

    def execute(self, words: Any) -> Any: ...
    def script_load(self, source: str) -> str: ...
    def peek(self, key: str) -> Any: ...
    def snapshot(self) -> Any: ...
    def restore(self, snapshot: Any) -> None: ...


class StoreWorld:
    """One server behind a network. `lossy` says whether a failover may lose what it had acknowledged."""

    def __init__(self, world: World, *, lossy: bool, backend: Backend | None = None) -> None:
        self.world = world
        self.lossy = lossy
        self.backend: Backend = backend or MiniStore(lambda: world.loop.now, self._publish)
        self.away_until = 0.0
        self.slow_until = 0.0
        self.repeats = 0  #: so many of the next claims are taken from their list twice
        self.lagging = False  #: the replica is behind: what is written now would be lost
        #: [(from, to)]: acknowledged writes of these times are gone.
        self.lost: list[tuple[float, float]] = []
        self.on_lost: Callable[[], None] = lambda: None
        self._listeners: list[Callable[[str, str], None]] = []

    def listen(self, listener: Callable[[str, str], None]) -> None:
        """Hear every PUBLISH (the listener loses and delays what it likes)."""
        self._listeners.append(listener)

    def _publish(self, channel: str, body: str) -> None:
        for listener in self._listeners:
            listener(channel, body)

    def outage(self, seconds: float) -> None:
        self.away_until = max(self.away_until, self.world.loop.now + seconds)

    def slow(self, seconds: float) -> None:
        self.slow_until = max(self.slow_until, self.world.loop.now + seconds)

    def failover(self, lag: float, downtime: float) -> None:
        """The replica takes over; on a lossy store it never saw the last `lag` seconds."""
        loop = self.world.loop
        if not self.lossy:
            self.outage(downtime)
            return
        if self.lagging:
            return
        began, snapshot = loop.now, self.backend.snapshot()
        self.lagging = True

        def take_over() -> None:
            self.lagging = False
            self._lose(snapshot, began)
            self.outage(downtime)
            self.world.trace("store", "failover", f"lost {loop.now - began:.3f} s")

        loop.after(lag, take_over)

    def wipe(self) -> None:
        """A store restarted without its data; only a lossy one does that."""
        if self.lossy and not self.lagging:
            self._lose(({}, {}), 0.0)
            self.world.trace("store", "wiped")

    def _lose(self, snapshot: Any, since: float) -> None:
        """Become the replica that had seen no more than this."""
        self.backend.restore(snapshot)
        self.lost.append((since, self.world.loop.now))
        self.on_lost()

    def forgot(self, at: float) -> bool:
        """Is what was acknowledged at this time gone?"""
        return any(began <= at <= until for began, until in self.lost)

    def _come_again(self, key: str, claim: str) -> None:
        """A claim that was taken from its list is there for another worker, too."""
        if key == keys.pool_claims(self.world.pool):
            self.repeats -= 1
            self.world.count("claim twice")
            self.backend.execute(("RPUSH", key, claim))
            self.world.wake_waiters()

    def command(self, words: tuple[Any, ...]) -> Any:
        if words[0] == "WAIT":
            return 0 if self.lagging else 1
        reply = self.backend.execute(words)
        if words[0] == "LPOP" and reply is not None and self.repeats > 0:
            self._come_again(words[1], reply)
        if words[0] == "HSET" and words[1].startswith(_SWEEP_DONE) and words[2] != "batches":
            self.world.audit("swept", words[3])
        if words[0] == "EVALSHA":
            self.world.audit_script(words, reply)
            name = self.world.script_names[words[1]]
            # The fields of an order come in the order of Lua's tables, which no two servers share.
            said = reply[:1] if name == "begin_order" else reply
            self.world.trace("step", name, str(words[3]), str(said)[:60])
        return reply


class SimClient:
    """The redis-py client of whoever is running: each round trip is one effect of that actor."""

    def __init__(self, store: StoreWorld) -> None:
        self._store = store

    def execute_command(self, *words: Any) -> Any:
        if words[0] == "XREAD":
            return self._read_stream(words)
        return self._round_trip([words])[0]

    def _read_stream(self, words: tuple[Any, ...]) -> Any:
        """XREAD that blocks: one round trip, which ends when something is there or its time is over."""
        world, at = self._store.world, words.index("BLOCK")
        plain, until = words[:at] + words[at + 2 :], world.loop.now + words[at + 1] / 1000

        def read() -> Any:
            while True:
                found = self._store.command(plain)
                if found or world.loop.now >= until:
                    return found
                world.await_claim(until)
                self._reach()

        return world.effect("store", "XREAD", read, reach=self._reach, lost=_reset)

    def _reach(self) -> None:
        actor, now = self._store.world.loop.actor, self._store.world.loop.now
        if self._store.away_until > now or (actor is not None and actor.cut_off_until > now):
            raise RedisConnectionError("connection refused")

    def pipeline(self, *, transaction: bool) -> _Pipeline:
        assert not transaction
        return _Pipeline(self._round_trip)

    def script_load(self, source: str) -> str:
        return self._store.backend.script_load(source)

    def blpop(self, keys: list[str], timeout: float) -> tuple[str, str] | None:  # noqa: ARG002 - the caller waits
        for key in keys:
            if (word := self.execute_command("LPOP", key)) is not None:
                return key, word
        return None

    def lpush(self, key: str, word: str) -> Any:
        return self.execute_command("LPUSH", key, word)

    def set(self, key: str, value: Any, ex: int) -> Any:
        return self.execute_command("SET", key, value, "EX", ex)

    def _round_trip(self, batch: list[tuple[Any, ...]]) -> Any:
        world, store = self._store.world, self._store

        def send() -> list[Any]:
            replies = []
            for number, words in enumerate(batch):
                if number and world.rng.random() < 0.01:
                    # The steps of one round trip are atomic one by one: others may come in between.
                    world.loop.sleep(world.rng.uniform(0.001, 0.05))
                    self._reach()
                try:
                    replies.append(store.command(words))
                except NoScriptError as missing:
                    if len(batch) == 1:
                        raise
                    replies.append(missing)
            if store.slow_until > world.loop.now and world.rng.random() < 0.3:
                world.loop.sleep(SOCKET_TIMEOUT_S)
                raise RedisTimeoutError("timeout reading from socket")
            return replies

        return world.effect("store", self._name(batch), send, reach=self._reach, lost=_reset)

    def _name(self, batch: list[tuple[Any, ...]]) -> str:
        first = batch[0]
        name = self._store.world.script_names[first[1]] if first[0] == "EVALSHA" else first[0]
        return name if len(batch) == 1 else f"{name} and {len(batch) - 1} more"


def _reset() -> Exception:
    return RedisConnectionError("connection reset")


class _Pipeline:
    def __init__(self, run: Callable[[list[tuple[Any, ...]]], Any]) -> None:
        self._run = run
        self._batch: list[tuple[Any, ...]] = []

    def execute_command(self, *words: Any) -> None:
        self._batch.append(words)

    def execute(self, *, raise_on_error: bool) -> Any:
        assert not raise_on_error
        return self._run(self._batch)


class FakeRedisBackend:
    """fakeredis in the place of `MiniStore`, to show that both give the same history. Patch the clock."""

    def __init__(self, publish: Callable[[str, str], None]) -> None:
        import fakeredis

        client: Any = fakeredis.FakeRedis
        self._client = client(server=fakeredis.FakeServer(), decode_responses=True)
        self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.psubscribe("*")
        self._pubsub.get_message()
        self._publish = publish

    def execute(self, words: Any) -> Any:
        reply = self._client.execute_command(*words)
        while (message := self._pubsub.get_message()) is not None:
            self._publish(message["channel"], message["data"])
        if words[0] == "SMEMBERS":
            return sorted(reply)
        return reply

    def script_load(self, source: str) -> str:
        return str(self._client.script_load(source))

    def peek(self, key: str) -> Any:
        kind = self._client.type(key)
        if kind == "hash":
            return self._client.hgetall(key)
        if kind == "set":
            return self._client.smembers(key)
        if kind == "zset":
            return dict(self._client.zrange(key, 0, -1, withscores=True))
        return self._client.get(key)

    def snapshot(self) -> Any:
        return {
            key: (self._client.dump(key), self._client.pexpiretime(key)) for key in self._client.scan_iter()
        }

    def restore(self, snapshot: Any) -> None:
        self._client.flushall()
        self._client.script_flush()
        kept = snapshot if isinstance(snapshot, dict) else {}
        for key, (value, expires) in kept.items():
            self._client.restore(key, 0, value)
            if expires > 0:
                self._client.pexpireat(key, expires)
