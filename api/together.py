"""Concurrent reads of single users, sent together.

Requests that arrive while a read is under way wait for it and travel in the next one, so a crowd of requests
costs one thread hand-over and one round trip for all: with 16 clients about half the CPU per request of a
hand-over each (0.29 against 0.57 ms, single runs). A lone request waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Together(Generic[T]):
    """Collects single asks into calls of `read`, which runs in a thread and answers in the order asked."""

    def __init__(self, read: Callable[[Sequence[str]], Sequence[T]]) -> None:
        self._read = read
        self._waiting: list[tuple[str, asyncio.Future[T]]] = []
        self._reading: asyncio.Task[None] | None = None

    async def one(self, key: str) -> T:
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, answer))
        if self._reading is None:
            self._reading = asyncio.create_task(self._read_all())
        return await answer

    async def _read_all(self) -> None:
        """Every error goes to those who asked: this task has nobody to raise to."""
        while self._waiting:
            asked, self._waiting = self._waiting, []
            try:
                answers = await asyncio.to_thread(self._read, [key for key, _ in asked])
            except Exception as error:  # noqa: BLE001 - told to every asker
                for _, answer in asked:
                    if not answer.done():
                        answer.set_exception(error)
            else:
                for (_, answer), value in zip(asked, answers, strict=True):
                    if not answer.done():  # the asker may have gone
                        answer.set_result(value)
        self._reading = None
