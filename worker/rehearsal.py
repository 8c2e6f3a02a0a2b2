"""A broker session opened once against a stand-in, before there is a user.

The first time code runs in a process is the slow one: the interpreter specialises it, the libraries fill
their tables, and in a forked process every page it writes to is copied first (650 of them, which was half of
what opening a session cost a worker). A process that waits has the time for that: the fork server rehearses
for all its children, and a pool worker for itself.

The stand-in is this process's own, on a loopback port, and is gone when `rehearse` returns. No credentials,
no service and no user are involved.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from contextlib import ExitStack, suppress
from datetime import timedelta
from typing import Any

from redis.exceptions import RedisError
from websockets.frames import Opcode
from websockets.utils import accept_key

from muster import keys, steps
from muster.aws import AwsClient, Keys
from muster.brokers.alpaca import AlpacaBroker
from muster.brokers.port import Credentials
from muster.clock import SystemClock
from muster.errors import MusterError
from muster.model import Assignment, Cause, Via
from muster.store import Store, command, words_of
from muster.vault import secrets_reader

#: A stand-in that does not answer within this is given up: a rehearsal is only ever a head start.
_PATIENCE_S = 2.0
_ACCOUNT: dict[str, Any] = {"id": "-", "currency": "USD", "cash": "1", "equity": "1", "buying_power": "1"}
_ACCOUNT |= {"trading_blocked": False, "account_blocked": False}
_ORDER: dict[str, Any] = {"client_order_id": "-", "id": "-", "symbol": "-", "side": "buy", "type": "market"}
_ORDER |= {"qty": "1", "filled_qty": "0", "filled_avg_price": None, "status": "new"}
_ORDER |= {"submitted_at": "2026-01-01T00:00:00+00:00", "updated_at": "2026-01-01T00:00:00+00:00"}
_SECRET = {"SecretString": json.dumps({"broker": "paper", "key_id": "-", "secret": "-"})}
_STREAM = (
    {"stream": "authorization", "data": {"action": "authenticate", "status": "authorized"}},
    {"stream": "listening", "data": {"streams": ["trade_updates"]}},
)
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_SWITCH = b"HTTP/1.1 101 -\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %b\r\n\r\n"
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CHUNK = 64 * 1024


def rehearse() -> None:
    """Read a secret, connect, open the stream, list the orders, say goodbye. Raises nothing."""
    with suppress(OSError, MusterError), socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_PATIENCE_S)
        stand_in = threading.Thread(target=_serve, args=(listener,), name="rehearsal")
        stand_in.start()
        try:
            _play(f"http://127.0.0.1:{listener.getsockname()[1]}")
        finally:
            stand_in.join()


def rehearse_store(store: Store) -> None:
    """What a worker asks of the store when its user has come: a listener in a thread, steps that travel
    together. Changes nothing there, and raises nothing."""

    def listen() -> None:
        with suppress(RedisError), store.client.pubsub(ignore_subscribe_messages=True) as listener:
            listener.subscribe(keys.CONTROL)
            listener.get_message(timeout=_PATIENCE_S)  # the server's word that it is so

    listening = threading.Thread(target=listen, name="rehearsal")
    listening.start()
    listening.join()
    with suppress(MusterError):
        store.run(*(command("EXISTS", keys.SWEEP_RUN, parse=int) for _ in range(2)))
    nobody = Assignment("nobody", 0, Via.WARM, Cause.START, 0, "-", "-")
    for step in (
        steps.take_slot("-", "-", "-"),
        steps.take_mark(nobody, "-", "-", "-"),
        steps.beat_mark(nobody, "-", "-", "-", "{}", ready=True),
        steps.index_add(nobody.user),
        steps.own_task("-", nobody.user),
        steps.note_start(nobody),
    ):
        words_of(step)  # put into words, and not sent


def _play(url: str) -> None:
    secrets = AwsClient("secretsmanager", "us-east-1", url, _PATIENCE_S, Keys("-", "-"))
    found = secrets_reader(secrets)("-")
    secrets.close()
    broker = AlpacaBroker(SystemClock())
    try:
        broker.connect(Credentials(found.broker, found.key_id, found.secret, url))
        broker.updates(timedelta(seconds=_PATIENCE_S))
        broker.open_orders()
    finally:
        broker.close()


def _serve(listener: socket.socket) -> None:
    """The other side of `_play`, in its order: one connection for the secret, one for the requests, one for
    the stream."""
    with suppress(OSError, StopIteration), ExitStack() as open_ones:

        def accepted() -> socket.socket:
            connection = open_ones.enter_context(listener.accept()[0])
            connection.settimeout(_PATIENCE_S)
            return connection

        _answer(accepted(), _SECRET)
        requests = accepted()
        _answer(requests, _ACCOUNT)
        stream = accepted()
        key = re.search(rb"sec-websocket-key: *(\S+)", _request(stream), re.IGNORECASE)
        assert key is not None
        stream.sendall(_SWITCH % accept_key(key[1].decode()).encode())
        for message in _STREAM:
            stream.recv(_CHUNK)
            body = json.dumps(message).encode()
            stream.sendall(bytes((0x80 | Opcode.BINARY, len(body))) + body)
        _answer(requests, [_ORDER])
        stream.recv(_CHUNK)
        stream.sendall(bytes((0x80 | Opcode.CLOSE, 2)) + (1000).to_bytes(2, "big"))


def _answer(connection: socket.socket, said: Any) -> None:
    _request(connection)
    body = json.dumps(said).encode()
    connection.sendall(_OK % len(body) + body)


def _request(connection: socket.socket) -> bytes:
    """The next request, whole."""
    said = b""
    while True:
        if not (more := connection.recv(_CHUNK)):
            raise ConnectionError("closed")
        said += more
        head, end, body = said.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if end and len(body) >= int(length[1] if length else 0):
            return said
