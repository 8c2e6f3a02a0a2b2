"""The alpaca adapter's stream against a scripted server: TLS, refusals, nonsense, and closing in time."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response
from websockets.sync.server import ServerConnection, serve

from muster.brokers.alpaca import AlpacaBroker
from muster.brokers.port import BadCredentials, BrokerAway, Credentials, Opened, SlotTaken
from muster.clock import FakeClock

SECOND = timedelta(seconds=1)
ACCOUNT = {
    "id": "a-1", "currency": "USD", "cash": "1", "equity": "1", "buying_power": "1",
    "trading_blocked": False, "account_blocked": False,
}  # fmt: skip
AUTHORIZED = {"stream": "authorization", "data": {"action": "authenticate", "status": "authorized"}}
LISTENING = {"stream": "listening", "data": {"streams": ["trade_updates"]}}

Script = Callable[[ServerConnection], None]


@contextmanager
def serving(script: Script, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that shows an account and plays the script to whoever opens the stream; its url."""

    def account(connection: ServerConnection, request: Request) -> Response | None:
        return connection.respond(200, json.dumps(ACCOUNT)) if request.path == "/v2/account" else None

    with serve(script, "127.0.0.1", 0, ssl=tls, process_request=account) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http{'s' if tls else ''}://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()


def saying(*answers: object) -> Script:
    """Answer each message with the next of these, then wait for the goodbye."""

    def script(connection: ServerConnection) -> None:
        for answer in answers:
            connection.recv(timeout=20)
            connection.send(answer if isinstance(answer, bytes) else json.dumps(answer).encode())
        for _ in connection:
            pass

    return script


def session(url: str) -> AlpacaBroker:
    broker = AlpacaBroker(FakeClock())
    broker.connect(Credentials("alpaca", "key", "secret", url))
    return broker


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
    return file


@pytest.fixture
def tls(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def test_https_and_wss_to_a_trusted_server(
    tls: ssl.SSLContext, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serving(saying(AUTHORIZED, LISTENING), tls) as url:
        broker = session(url)
        assert broker.updates(SECOND) == Opened()
        broker.close()


def test_an_untrusted_server_never_sees_the_credentials(tls: ssl.SSLContext) -> None:
    with serving(saying(AUTHORIZED, LISTENING), tls) as url, pytest.raises(BrokerAway, match="CERTIFICATE"):
        session(url)


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([{"data": {"status": "unauthorized"}}], BadCredentials),
        ([{"data": {"status": "unauthorized", "message": "connection limit exceeded"}}], SlotTaken),
        ([b"not json"], BrokerAway),
        ([{"stream": "authorization"}], BrokerAway),
        ([AUTHORIZED, {"stream": "listening", "data": {"streams": []}}], BrokerAway),
    ],
    ids=["bad key", "slot taken", "not json", "no data", "not offered"],
)  # fmt: skip
def test_a_stream_that_does_not_open_is_closed_and_says_why(
    answers: list[object], error: type[Exception]
) -> None:
    gone = threading.Event()

    def script(connection: ServerConnection) -> None:
        saying(*answers)(connection)
        gone.set()

    with serving(script) as url:
        broker = session(url)
        with pytest.raises(error) as raised:
            broker.updates(SECOND)
        assert type(raised.value) is error
        assert gone.wait(20), "a socket left open holds the key's only slot"
        broker.close()


def test_nonsense_in_an_open_stream_is_a_lost_stream() -> None:
    def script(connection: ServerConnection) -> None:
        for answer in (AUTHORIZED, LISTENING):
            connection.recv(timeout=20)
            connection.send(json.dumps(answer))
        connection.send(json.dumps({"stream": "trade_updates", "data": {"event": "fill"}}))
        for _ in connection:
            pass

    with serving(script) as url:
        broker = session(url)
        assert broker.updates(SECOND) == Opened()
        with pytest.raises(BrokerAway, match="lost"):
            broker.updates(timedelta(seconds=20))
        broker.close()


def test_closing_from_another_thread_ends_a_waiting_updates() -> None:
    with serving(saying(AUTHORIZED, LISTENING)) as url:
        broker = session(url)
        assert broker.updates(SECOND) == Opened()
        closer = threading.Timer(0.05, broker.close)
        closer.start()
        with pytest.raises(BrokerAway):
            broker.updates(timedelta(seconds=60))
        closer.join()
        with pytest.raises(BrokerAway):
            broker.updates(timedelta())


def test_a_stream_that_opens_while_the_session_closes_is_closed_too() -> None:
    broker: list[AlpacaBroker] = []
    ended: list[ConnectionClosed] = []
    over = threading.Event()

    def script(connection: ServerConnection) -> None:
        connection.recv(timeout=20)
        connection.send(json.dumps(AUTHORIZED))
        connection.recv(timeout=20)
        broker[0].close()  # the worker is told to stop in the middle of the handshake
        connection.send(json.dumps(LISTENING))
        try:
            connection.recv(timeout=20)
        except ConnectionClosed as closed:
            ended.append(closed)
        over.set()

    with serving(script) as url:
        broker.append(session(url))
        with pytest.raises(BrokerAway, match="closed"):
            broker[0].updates(SECOND)
        assert over.wait(20)
        assert ended, "the stream outlived its session"
