"""What is asked for at the same time travels together: the first goes at once, and those that come while it
is under way wait and share the next trip. A lone one waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Convoy(Generic[T, R]):
    """For one event loop. `carry` blocks, so it runs in a thread; it answers every item in order, or raises
    for all of them. At most `most` items share a trip, and `trips` trips are under way at once."""

    def __init__(self, carry: Callable[[Sequence[T]], Sequence[R]], *, most: int, trips: int = 1) -> None:
        self._carry, self._most, self._trips = carry, most, trips
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._under_way: set[asyncio.Task[None] | None] = set()

    def join(self, item: T) -> asyncio.Future[R]:
        """The answer to come."""
        answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self.add([(item, answer)])
        return answer

    def add(self, asked: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        """As `join`, for answers that are waited for already."""
        self._waiting += asked
        if len(self._under_way) < self._trips:
            self._under_way.add(asyncio.create_task(self._go()))

    async def _go(self) -> None:
        try:
            while self._waiting:
                asked, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
                await self._trip(asked)
        finally:
            # Here, not when the loop notices: whoever comes next must not wait for a trip that is over.
            self._under_way.discard(asyncio.current_task())

    async def _trip(self, asked: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        """Every error goes to those who asked: there is nobody else to raise to."""
        try:
            answers = await asyncio.to_thread(self._carry, [item for item, _ in asked])
        except Exception as error:  # noqa: BLE001 - told to every asker
            for _, answer in asked:
                if not answer.done():
                    answer.set_exception(error)
        else:
            for (_, answer), value in zip(asked, answers, strict=True):
                if not answer.done():  # the asker may have gone
                    answer.set_result(value)
