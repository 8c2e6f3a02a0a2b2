"""A websocket that is read by whoever wants its messages, and has no thread of its own.

The protocol is the `websockets` package's. Its own synchronous client runs two threads per connection, which
costs a start a few milliseconds and every worker of a full machine some memory.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from contextlib import suppress
from datetime import timedelta
from urllib.parse import urlsplit

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import CLOSED, CONNECTING, OPEN, SEND_EOF
from websockets.uri import parse_uri

#: A connection that says nothing is probed this often, so that a dead peer is noticed.
PING_EVERY = timedelta(seconds=20)
#: How long a goodbye may take; the process has other things to close within its drain.
CLOSE_TIMEOUT = timedelta(seconds=2)

_PING_S = PING_EVERY.total_seconds()
_CHUNK = 64 * 1024


class WebSocket:
    """A client connection. One thread receives; `close` may come from another, and ends a `recv` there.

    The other side's pings are answered, and its silence is noticed, while somebody receives. Raises `OSError`
    (`TimeoutError` among them) and the errors of `websockets.exceptions`.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None, connect_timeout: timedelta) -> None:
        """Connect and shake hands; a refusal is `InvalidStatus`."""
        parts = urlsplit(url)
        port = parts.port or (443 if tls else 80)
        patience = connect_timeout.total_seconds()
        self._protocol = ClientProtocol(parse_uri(url))
        self._message: list[bytes] = []
        self._whole: list[bytes] = []
        self._pinged_at: float | None = None
        self._heard_at = time.monotonic()
        self._sending = threading.Lock()  # guards the protocol's outgoing half and the socket's
        self._receiving = threading.Lock()
        self._socket: socket.socket = socket.create_connection((parts.hostname or "", port), patience)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = tls.wrap_socket(self._socket, server_hostname=parts.hostname)
            self._shake_hands(time.monotonic() + patience)
        except BaseException:
            self._socket.close()
            raise

    def send(self, text: str) -> None:
        with self._sending:
            self._protocol.send_text(text.encode())
            self._flush()

    def recv(self, timeout: float) -> bytes:
        """The next message; `TimeoutError` after so many seconds without one."""
        until = time.monotonic() + timeout
        with self._receiving:
            while not self._whole:
                if self._protocol.state is not OPEN:
                    raise ConnectionError("the connection was closed")
                self._read(until)
            return self._whole.pop(0)

    def close(self) -> None:
        """Say goodbye, and wait a moment for the answer: it tells the other side that the slot is free."""
        until = time.monotonic() + CLOSE_TIMEOUT.total_seconds()
        try:
            with self._sending:
                if self._protocol.state is OPEN:
                    self._protocol.send_close(1000)
                    self._flush()
            if self._receiving.acquire(timeout=CLOSE_TIMEOUT.total_seconds()):
                try:
                    while self._protocol.state is not CLOSED:
                        self._read(until)
                finally:
                    self._receiving.release()
        except OSError:
            pass  # gone, or silent: this connection is over all the same
        finally:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # wakes a `recv` that still waits
            self._socket.close()

    def _shake_hands(self, until: float) -> None:
        with self._sending:
            self._protocol.send_request(self._protocol.connect())
            self._flush()
        while self._protocol.state is CONNECTING:
            self._read(until)

    def _read(self, until: float) -> None:
        """Take what has arrived, or wait for it. Raises what the connection came to."""
        now = time.monotonic()
        if not self._is_readable(min(until, self._probe(now)) - now):
            if time.monotonic() >= until:
                raise TimeoutError("nothing came in time")
            return
        data = self._socket.recv(_CHUNK)
        self._heard_at, self._pinged_at = time.monotonic(), None
        with self._sending:
            if data:
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()
            with suppress(OSError):  # an answer to somebody who has gone: the next read says so
                self._flush()
        for event in self._protocol.events_received():
            if isinstance(event, Frame):
                self._take(event)
        if self._protocol.handshake_exc is not None:
            raise self._protocol.handshake_exc

    def _probe(self, now: float) -> float:
        """When to look again after the other side: pings the silent, gives up on those who stay so."""
        if self._protocol.state is not OPEN:
            return float("inf")
        if self._pinged_at is None and now - self._heard_at >= _PING_S:
            with self._sending:
                self._protocol.send_ping(b"")
                self._flush()
            self._pinged_at = now
        elif self._pinged_at is not None and now - self._pinged_at >= _PING_S:
            raise ConnectionError("the other side does not answer any more")
        return (self._heard_at if self._pinged_at is None else self._pinged_at) + _PING_S

    def _is_readable(self, seconds: float) -> bool:
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return True
        waiting = select.poll()
        waiting.register(self._socket, select.POLLIN)
        return bool(waiting.poll(max(0.0, seconds) * 1000))

    def _take(self, frame: Frame) -> None:
        if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            self._message.append(bytes(frame.data))
            if frame.fin:
                self._whole.append(b"".join(self._message))
                self._message.clear()

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if data is SEND_EOF:
                with suppress(OSError):
                    self._socket.shutdown(socket.SHUT_WR)
            else:
                self._socket.sendall(data)
