"""The websocket without threads, against a real server: messages, pings, silence, goodbyes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from muster.brokers import websocket
from muster.brokers.websocket import WebSocket

PATIENCE = timedelta(seconds=20)


@contextmanager
def serving(script: Callable[[ServerConnection], None], status: int = 0) -> Iterator[str]:
    def refuse(connection: ServerConnection, _: Request) -> Response | None:
        return connection.respond(status, "no") if status else None

    with serve(script, "127.0.0.1", 0, process_request=refuse, ping_interval=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/stream"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def silent() -> Iterator[str]:
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"ws://127.0.0.1:{listener.getsockname()[1]}/stream"


def test_messages_come_whole_and_in_order_also_in_fragments() -> None:
    def script(connection: ServerConnection) -> None:
        assert connection.recv() == "hello"
        connection.send("one")
        connection.send(b"two")
        connection.send(["th", "r", "ee"])
        connection.send("x" * 200_000)
        connection.recv()

    with serving(script) as url:
        stream = WebSocket(url, None, PATIENCE)
        stream.send("hello")
        assert [stream.recv(20) for _ in range(4)] == [b"one", b"two", b"three", b"x" * 200_000]
        with pytest.raises(TimeoutError):
            stream.recv(0.01)
        stream.close()


def test_a_ping_is_answered_while_somebody_receives() -> None:
    answered = threading.Event()

    def script(connection: ServerConnection) -> None:
        assert connection.ping().wait(20)
        answered.set()
        connection.send("done")
        connection.recv()

    with serving(script) as url:
        stream = WebSocket(url, None, PATIENCE)
        assert stream.recv(20) == b"done"
        assert answered.is_set()
        stream.close()


def test_a_goodbye_reaches_the_other_side_as_one() -> None:
    ended: list[ConnectionClosed] = []
    over = threading.Event()

    def script(connection: ServerConnection) -> None:
        try:
            connection.recv()
        except ConnectionClosed as closed:
            ended.append(closed)
        over.set()

    with serving(script) as url:
        WebSocket(url, None, PATIENCE).close()
        assert over.wait(20)
        assert ended[0].rcvd is not None
        assert ended[0].rcvd.code == 1000


def test_the_other_sides_goodbye_ends_a_recv_after_what_came_before_it() -> None:
    def script(connection: ServerConnection) -> None:
        connection.send("last words")
        connection.close()

    with serving(script) as url:
        stream = WebSocket(url, None, PATIENCE)
        assert stream.recv(20) == b"last words"
        with pytest.raises(ConnectionError, match="closed"):
            stream.recv(20)
        stream.close()


def test_a_connection_that_breaks_ends_a_recv() -> None:
    def script(connection: ServerConnection) -> None:
        connection.socket.shutdown(socket.SHUT_RDWR)

    with serving(script) as url:
        stream = WebSocket(url, None, PATIENCE)
        with pytest.raises(ConnectionError):
            stream.recv(20)
        stream.close()


def test_silence_through_a_ping_is_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = threading.Event()

    def script(connection: ServerConnection) -> None:
        # As a host that is gone: what arrives is not answered.
        connection.protocol.receive_data = lambda _data: None  # type: ignore[method-assign]
        stopped.wait(20)
        connection.socket.shutdown(socket.SHUT_RDWR)

    with serving(script) as url:
        stream = WebSocket(url, None, PATIENCE)
        monkeypatch.setattr(websocket, "_PING_S", 0.05)
        with pytest.raises(ConnectionError, match="does not answer"):
            stream.recv(20)
        stopped.set()
        stream.close()


def test_a_refused_handshake_says_its_status() -> None:
    with serving(lambda _: None, status=429) as url, pytest.raises(InvalidStatus) as refused:
        WebSocket(url, None, PATIENCE)
    assert refused.value.response.status_code == 429


def test_a_server_that_says_nothing_does_not_hold_a_connect() -> None:
    with silent() as url, pytest.raises(TimeoutError):
        WebSocket(url, None, timedelta(milliseconds=50))


def test_close_from_another_thread_ends_a_recv_even_of_a_deaf_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = threading.Event()

    def script(connection: ServerConnection) -> None:
        connection.protocol.receive_data = lambda _data: None  # type: ignore[method-assign]
        stopped.wait(20)

    monkeypatch.setattr(websocket, "CLOSE_TIMEOUT", timedelta(milliseconds=50))
    with serving(script) as url:
        stream = WebSocket(url, None, PATIENCE)
        closer = threading.Timer(0.02, stream.close)
        closer.start()
        with pytest.raises(OSError, match=r"closed|descriptor"):
            stream.recv(20)
        closer.join()
        stopped.set()
