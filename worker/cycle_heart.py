"""The two threads that keep a worker known: the heart beats, the ear listens.

They run beside the strategy, so that a cycle that blocks for minutes loses neither its lock nor a
command. When the server comes back after an absence the ear notices first (its connection broke) and
makes the heart beat at once: an emptied server knows every worker again within moments.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from muster.clock import Clock
from muster.errors import TryLater
from muster.store import Store, command, text
from supervisor.timings import Timings, milliseconds
from worker.cycle_db import Journal
from worker.cycle_keys import RESTART, SHUTDOWN, Keys, command_for
from worker.cycle_lock import Lock, name_holder

_LOG = logging.getLogger(__name__)
_RETRY_S = 0.25  # how soon a lost server is asked again


class Heart(threading.Thread):
    """Renews the lock and publishes heartbeat and state, every `heartbeat_every` or when poked.

    `lost(reason)` is called once, from this thread, when the lock belongs to somebody else or could
    not be renewed for its whole TTL, or when the heart itself fails: the worker must not act any more.
    """

    def __init__(
        self,
        store: Store,
        keys: Keys,
        key: str,
        lock: Lock,
        journal: Journal,
        state: Callable[[], str],
        lost: Callable[[str], None],
        timings: Timings,
        clock: Clock,
    ) -> None:
        super().__init__(name="heart", daemon=True)
        self._store, self._keys, self._key = store, keys, key
        self._lock, self._journal, self._state, self._lost = lock, journal, state, lost
        self._timings, self._clock = timings, clock
        self._poked = threading.Event()
        self._ended = False

    def poke(self) -> None:
        """Beat now, not at the end of the interval."""
        self._poked.set()

    def end(self) -> None:
        """Stop beating; returns when the last beat is over."""
        self._ended = True
        self._poked.set()
        self.join()

    def run(self) -> None:
        while not self._ended:
            self._poked.clear()
            pause = self._timings.heartbeat_every.total_seconds()
            try:
                other = self.beat()
            except TryLater as away:
                if not self._lock.held():
                    self._give_up(f"the lock could not be renewed for its whole TTL: {away}")
                    return
                _LOG.warning("%s: no heartbeat, trying again: %s", self._key, away)
                pause = min(pause, _RETRY_S)
            except Exception as broken:
                self._lost(f"the heart failed: {broken!r}")
                raise
            else:
                if other is not None:
                    self._give_up(f"{name_holder(other)} holds the lock now")
                    return
            self._poked.wait(pause)

    def beat(self) -> str | None:
        """One beat; the value of the other holder when the lock is lost."""
        other = self._lock.renew()
        if other is not None:
            return other
        now = self._clock.now()
        self._store.run(
            _put(self._keys.heartbeat(self._key), str(round(now * 1000)), self._timings.heartbeat_ttl),
            _put(self._keys.state(self._key), self._state(), self._timings.state_ttl),
        )
        self._journal.held(now)
        return None

    def _give_up(self, reason: str) -> None:
        self._journal.end(self._clock.now(), "lost")
        self._lost(reason)


class Ear(threading.Thread):
    """Listens on the control channel. `shutdown()` is called, from this thread, on SHUTDOWN and RESTART."""

    def __init__(
        self,
        client: Any,
        store: Store,
        keys: Keys,
        key: str,
        shutdown: Callable[[str], None],
        connected: Callable[[], None],
        timings: Timings,
    ) -> None:
        super().__init__(name="ear", daemon=True)
        self._client, self._store, self._keys, self._key = client, store, keys, key
        self._shutdown, self._connected, self._timings = shutdown, connected, timings
        self._ended = threading.Event()
        self._channel: Any = None

    def end(self) -> None:
        """Stop listening; returns when the ear is closed."""
        self._ended.set()
        if self._channel is not None:
            try:
                self._channel.unsubscribe()  # its answer ends the wait for a message
            except RedisError as away:
                _LOG.info("%s: the control channel was gone already: %s", self._key, away)
        self.join()

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self._listen()
            except (RedisError, TryLater) as away:
                _LOG.warning("%s: control channel lost, subscribing again: %s", self._key, away)
                self._ended.wait(_RETRY_S)

    def _listen(self) -> None:
        with self._client.pubsub() as channel:
            channel.subscribe(self._keys.control)
            self._channel = channel
            while not self._ended.is_set():
                message = channel.get_message(timeout=5.0)
                if message is None:
                    continue
                if message["type"] == "subscribe":
                    self._connected()
                elif message["type"] == "message":
                    self._obey(text(message["data"]))

    def _obey(self, message: str) -> None:
        match command_for(message, self._key):
            case "SHUTDOWN":
                self._shutdown(SHUTDOWN)
            case "RESTART":
                # The flag first: once we have exited, the supervisor looks for it only once.
                self._store.one(_put(self._keys.restarting(self._key), "1", self._timings.restarting_ttl))
                self._shutdown(RESTART)
            case None:
                pass
            case unknown:
                _LOG.warning("%s: unknown control command %r ignored", self._key, unknown)


def _put(key: str, value: str, ttl: Any) -> Any:
    return command("SET", key, value, "PX", milliseconds(ttl), parse=bool)
