"""The streams of updates: who listens, who holds the slot of a key, and what is sent to whom."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect

from local.paper.book import Book
from local.paper.matching import Matching

#: Updates a listener may be behind before it is cut off: a stuck client must not fill the memory.
BACKLOG = 1000
#: A connection has this long to say who it is.
AUTH_PATIENCE_S = 10.0
#: Close codes of a client that said goodbye; anything else is a connection that was lost.
GOODBYE = (1000, 1001)

Authorize = Callable[[str, str], bool]
Cut = Callable[[WebSocket], None]


@dataclass(slots=True)
class Stream:
    """One authenticated connection, and what it has not been sent yet."""

    key_id: str
    socket: WebSocket
    queue: asyncio.Queue[bytes]
    listening: bool = False


class Streams:
    """All open streams. `cut` ends a connection without a word, as a broken network does."""

    def __init__(
        self, book: Book, matching: Matching, now: Callable[[], float], authorize: Authorize, cut: Cut
    ) -> None:
        self._book, self._matching, self._now = book, matching, now
        self._authorize, self._cut = authorize, cut
        self._open: dict[int, Stream] = {}
        self._open_now: Counter[str] = Counter()  #: open streams by key
        #: Key -> until when a lost stream still holds its slot.
        self._held: dict[str, float] = {}
        self._sent = 0

    async def serve(self, socket: WebSocket) -> None:
        """One connection from handshake to end."""
        await socket.accept()
        try:
            async with asyncio.timeout(AUTH_PATIENCE_S):
                message = await _receive(socket)
            key_id, secret = (str(message["data"][name]) for name in ("key_id", "secret_key"))
            answer = {"action": "authenticate", "status": "unauthorized"}
            if message["action"] == "authenticate" and self._authorize(key_id, secret):
                if not self._slot_taken(key_id):
                    await self._run(Stream(key_id, socket, asyncio.Queue(BACKLOG)))
                    return
                answer["message"] = "connection limit exceeded"
            await _send(socket, "authorization", answer)
            await socket.close(1008)
        except WebSocketDisconnect:
            return
        except (ValueError, KeyError, TypeError, TimeoutError):
            # Silent, or not speaking the protocol.
            await socket.close(1008)

    def publish(self, key_id: str, update: dict[str, Any]) -> None:
        """Send an update to the listeners of an account, with the faults that strike it."""
        faults, strikes = self._matching.faults, self._matching.strikes
        name = (update["order"]["client_order_id"], update["event"], update["order"]["filled_qty"])
        content = json.dumps({"stream": "trade_updates", "data": update}).encode()
        behind = faults.behind_s if strikes(faults.out_of_order, "out of order", *name) else 0.0
        for _ in range(2 if strikes(faults.duplicate, "duplicate", *name) else 1):
            if behind:
                asyncio.get_running_loop().call_later(behind, self._deliver, key_id, content)
            else:
                self._deliver(key_id, content)

    def drop(self, key_id: str | None = None) -> int:
        """Cut the streams of one account, or all. Returns how many."""
        found = [stream for stream in self._open.values() if key_id in (None, stream.key_id)]
        for stream in found:
            self._cut(stream.socket)
        return len(found)

    def _deliver(self, key_id: str, content: bytes) -> None:
        for stream in tuple(self._open.values()):
            if stream.key_id != key_id or not stream.listening:
                continue
            self._sent += 1
            lost = self._matching.strikes(self._matching.faults.lost_stream, "stream", self._sent)
            if lost or stream.queue.full():
                self._cut(stream.socket)
            else:
                stream.queue.put_nowait(content)

    def _slot_taken(self, key_id: str) -> bool:
        if not self._matching.faults.one_stream:
            return False
        return self._open_now[key_id] > 0 or self._held.get(key_id, 0.0) > self._now()

    async def _run(self, stream: Stream) -> None:
        """An authenticated stream: from here on the session counts and the slot is taken. Nothing may
        await between the look at the slot and this."""
        session = self._book.open_session(stream.key_id, self._now())
        self._open[session] = stream
        self._open_now[stream.key_id] += 1
        sender = asyncio.create_task(_drain(stream))
        goodbye = False
        try:
            await _send(stream.socket, "authorization", {"action": "authenticate", "status": "authorized"})
            while True:
                message = await _receive(stream.socket)
                if message["action"] == "listen":
                    stream.listening = "trade_updates" in message["data"]["streams"]
                    streams = ["trade_updates"] if stream.listening else []
                    await _send(stream.socket, "listening", {"streams": streams})
        except WebSocketDisconnect as gone:
            goodbye = gone.code in GOODBYE
        finally:
            sender.cancel()
            del self._open[session]
            self._open_now[stream.key_id] -= 1
            self._book.close_session(session, self._now(), goodbye=goodbye)
            if not goodbye and self._matching.faults.slot_hold_s:
                self._held[stream.key_id] = self._now() + self._matching.faults.slot_hold_s


async def _receive(socket: WebSocket) -> dict[str, Any]:
    frame = await socket.receive()
    if frame["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(frame.get("code", 1006))
    message = json.loads(frame.get("text") or frame.get("bytes") or "")
    if not isinstance(message, dict):
        raise ValueError("a message must be an object")
    return message


async def _send(socket: WebSocket, stream: str, data: dict[str, Any]) -> None:
    """As the real service does: JSON in binary frames."""
    await socket.send_bytes(json.dumps({"stream": stream, "data": data}).encode())


async def _drain(stream: Stream) -> None:
    while True:
        content = await stream.queue.get()
        try:
            await stream.socket.send_bytes(content)
        except (WebSocketDisconnect, RuntimeError):
            return  # the connection has ended; the receiving side of this stream sees it too
