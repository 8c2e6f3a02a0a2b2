"""Steps that are asked for at the same time, sent together.

On a server that takes plain connections they are written to one by the event loop itself (`api.pipe`). Else,
and while there is none, a thread sends them: those that arrive while a round trip is under way wait for it
and travel in the next one. A lone one waits for nobody.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, TypeVar, cast

from api.convoy import Convoy
from api.pipe import Pipe
from muster.store import Step, Store
from muster.wire import plain_address

T = TypeVar("T")

#: After a connection was lost or refused, the next is tried this much later.
_RECONNECT_S = 1.0
#: Steps in one round trip of a thread: it has one answer's time for all of them.
_MOST = 1000


class Together:
    """The asynchronous face of a store, for one event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._threads: Convoy[Step[Any], Any] = Convoy(lambda steps: store.run(*steps), most=_MOST)
        self._pipe: Pipe | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connect_at = 0.0

    def soon(self, step: Step[T]) -> asyncio.Future[T]:
        """The answer to come. Steps asked for before the next wait of this loop travel in the same trip."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        if self._pipe is not None and self._is_raw(step):
            self._pipe.ask((step, answer))
        else:
            if self._pipe is None and self._connecting is None and loop.time() >= self._connect_at:
                self._connecting = asyncio.create_task(self._connect())
            self._threads.add([(step, answer)])
        return cast("asyncio.Future[T]", answer)

    async def one(self, step: Step[T]) -> T:
        return await self.soon(step)

    def _is_raw(self, step: Step[Any]) -> bool:
        """Is the reply parsed as it comes? The client makes something else of some commands' replies."""
        return step.script is not None or step.args[0] not in self.store.client.response_callbacks

    async def _connect(self) -> None:
        """A pipe, where the store's address is one that needs no more than a connection."""
        loop = asyncio.get_running_loop()
        self._connect_at = loop.time() + _RECONNECT_S
        try:
            if (address := plain_address(self.store.client)) is None:
                self._connect_at = float("inf")
                return
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(address.timeout_s):
                    pipe = Pipe(address.timeout_s, self._threads.add, self._gone)
                    await loop.create_connection(lambda: pipe, address.host, address.port)
                self._pipe = pipe
        finally:
            self._connecting = None

    def _gone(self) -> None:
        self._pipe = None
