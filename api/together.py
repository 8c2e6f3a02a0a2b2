"""Steps that are asked for at the same time, sent together.

Those that arrive while a round trip is under way wait for it and travel in the next one, so a crowd of
requests costs one thread hand-over and one round trip for all: with 16 clients about half the CPU per request
of a hand-over each (0.29 against 0.57 ms, single runs). A lone one waits for nobody.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar, cast

from muster.store import Step, Store

T = TypeVar("T")


class Together:
    """The asynchronous face of a store, for one event loop."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._waiting: list[tuple[Step[Any], asyncio.Future[Any]]] = []
        self._sending: asyncio.Task[None] | None = None

    def soon(self, step: Step[T]) -> asyncio.Future[T]:
        """The answer to come. Steps asked for before the next wait of this loop travel in the same trip."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((step, answer))
        if self._sending is None:
            self._sending = asyncio.create_task(self._send_all())
        return cast("asyncio.Future[T]", answer)

    async def one(self, step: Step[T]) -> T:
        return await self.soon(step)

    async def _send_all(self) -> None:
        """Every error goes to those who asked: this task has nobody to raise to."""
        while self._waiting:
            asked, self._waiting = self._waiting, []
            try:
                answers = await asyncio.to_thread(self.store.run, *(step for step, _ in asked))
            except Exception as error:  # noqa: BLE001 - told to every asker
                for _, answer in asked:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for (_, answer), value in zip(asked, answers, strict=True):
                    if not answer.done():  # the asker may have gone
                        answer.set_result(value)
        self._sending = None
