"""One subscription per process, fanned out to any number of watchers.

A subscription of its own for every watcher would cost the store a connection each. One thread reads the
channel while anybody listens, and hands each event to the watchers' event loops.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisError

from api.source import Event
from muster import keys
from muster.commands import from_ms
from muster.errors import TryLater

#: Events a watcher may be behind before it is told to look anew.
BACKLOG = 1000
_READ_S = 0.5
_SUBSCRIBE_S = 5.0


class _Watcher:
    """One listener's queue, in its own event loop. None in it is the end."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.queue: asyncio.Queue[Event | None] = asyncio.Queue()

    def tell(self, event: Event | None) -> None:
        """From the reader's thread. A loop that has closed has no listener any more."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: Event | None) -> None:
        if self.queue.qsize() < BACKLOG:
            self.queue.put_nowait(event)
        elif self.queue.qsize() == BACKLOG:
            self.queue.put_nowait(None)


class Feed:
    """The events of `keys.EVENTS` for this process. The reading thread lives while somebody listens."""

    def __init__(self, client: Any, heard: Callable[[str], None] = lambda _: None) -> None:
        """`heard` is told the user of every event, before the watchers are."""
        self._client = client
        self._heard = heard
        self._lock = threading.Lock()
        self._watchers: set[_Watcher] = set()
        self._reader: _Reader | None = None

    async def listen(self, idle_s: float) -> AsyncIterator[Event | None]:
        watcher = _Watcher()
        with self._lock:
            self._watchers.add(watcher)
            if self._reader is None:
                self._reader = _Reader(self)
            reader = self._reader
        try:
            # A thread's wait: the subscription is made by the reader, once for all.
            await asyncio.to_thread(reader.subscribed)
            yield None
            while True:
                try:
                    event = await asyncio.wait_for(watcher.queue.get(), idle_s)
                except TimeoutError:
                    yield None
                    continue
                if event is None:
                    return
                yield event
        finally:
            with self._lock:
                self._watchers.discard(watcher)

    def close(self) -> None:
        """End every stream and the reader; returns when nothing uses the client any more."""
        with self._lock:
            reader = self._reader
        if reader is not None:
            self.broken(reader)
            reader.thread.join()

    def close_if_idle(self, reader: _Reader) -> bool:
        """True: nobody listens to this reader, it ends; the next listener gets a new one."""
        with self._lock:
            if self._reader is reader and self._watchers:
                return False
            if self._reader is reader:
                self._reader = None
            return True

    def tell(self, event: Event) -> None:
        self._heard(event.user_id)
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            watcher.tell(event)

    def broken(self, reader: _Reader) -> None:
        """Events may have been missed: everybody looks anew."""
        with self._lock:
            watchers, self._watchers = list(self._watchers), set()
            if self._reader is reader:
                self._reader = None
        for watcher in watchers:
            watcher.tell(None)

    def subscribe(self) -> Any:
        pubsub = self._client.pubsub()
        pubsub.subscribe(keys.EVENTS)
        return pubsub


class _Reader:
    """The thread that reads the channel."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._answered = threading.Event()
        self._failure: RedisError | None = None
        self.thread = threading.Thread(target=self._run, name="events-reader", daemon=True)
        self.thread.start()

    def subscribed(self) -> None:
        """Wait until the channel is subscribed to; `TryLater` if it cannot be."""
        if not self._answered.wait(_SUBSCRIBE_S) or self._failure is not None:
            raise TryLater(f"the event channel does not answer ({self._failure}); listen again")

    def _run(self) -> None:
        try:
            pubsub = self._feed.subscribe()
            try:
                while not self._feed.close_if_idle(self):
                    message = pubsub.get_message(timeout=_READ_S)
                    if message is None:
                        continue
                    if message["type"] == "subscribe":
                        self._answered.set()
                    elif message["type"] == "message":
                        self._feed.tell(_event(message["data"]))
            finally:
                pubsub.close()
        except RedisError as away:
            self._failure = away
            self._answered.set()
            self._feed.broken(self)


def _event(data: str | bytes) -> Event:
    raw = json.loads(data)
    return Event(raw["user_id"], raw["event"], int(raw["epoch"]), from_ms(int(raw["at"])), raw["detail"])
