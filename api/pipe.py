"""A connection to the store on the event loop: steps are written as they come, replies answer them in order.

A thread and its own connection cost a crowd of small reads more than the reads themselves. This is only the
fast way: whatever goes wrong on it (a script the server does not know, an error, a lost connection) is left
to the threads, whose client knows how to try again and what to say. Every step may be run twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import hiredis

from muster.errors import TryLater
from muster.store import Step, words_of

Asked = tuple[Step[Any], "asyncio.Future[Any]"]


class Pipe(asyncio.Protocol):
    """For one event loop. `again` gets what could not be answered here; `lost` is called once, at the end."""

    def __init__(
        self, timeout_s: float, again: Callable[[list[Asked]], None], lost: Callable[[], None]
    ) -> None:
        self._timeout_s, self._again, self._lost = timeout_s, again, lost
        self._reader = hiredis.Reader(encoding="utf-8", errors="strict")
        self._transport: Any = None
        self._waiting: list[Asked] = []
        self._sent: deque[Asked] = deque()
        self._heard = 0
        self._watch: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def ask(self, asked: Asked) -> None:
        """What is asked before the loop goes on is written in one piece."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._write)
        self._waiting.append(asked)

    def _write(self) -> None:
        asked, self._waiting = self._waiting, []
        self._transport.write(b"".join([hiredis.pack_command(words_of(step)) for step, _ in asked]))
        self._sent.extend(asked)
        if self._watch is None:
            self._look_after(self._heard)

    def _look_after(self, heard: int) -> None:
        """A server that has said nothing since the last look, and should have, is away."""
        self._watch = asyncio.get_running_loop().call_later(self._timeout_s, self._look, heard)

    def _look(self, heard: int) -> None:
        self._watch = None
        if not self._sent:
            return
        if self._heard == heard:
            away = TryLater(f"Valkey has not answered for {self._timeout_s:g} s; ask again")
            for _, answer in self._sent:
                if not answer.done():
                    answer.set_exception(away)
            self._sent.clear()
            self._transport.abort()
        else:
            self._look_after(self._heard)

    def data_received(self, data: bytes) -> None:
        self._heard += 1
        self._reader.feed(data)
        failed: list[Asked] = []
        while (reply := self._reader.gets()) is not False:
            step, answer = self._sent.popleft()
            if answer.done():
                continue  # the asker may have gone
            if isinstance(reply, hiredis.ReplyError):
                failed.append((step, answer))
                continue
            try:
                answer.set_result(step.parse(reply))
            except Exception as wrong:  # noqa: BLE001 - told to whoever asked
                answer.set_exception(wrong)
        if failed:
            self._again(failed)

    def connection_lost(self, _why: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        left = [*self._sent, *self._waiting]
        self._sent.clear()
        self._waiting.clear()
        self._lost()
        if left:
            self._again(left)
