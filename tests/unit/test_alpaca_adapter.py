"""The alpaca adapter against answers that a well-behaved server would never give."""

from __future__ import annotations

import http.server
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import parse_qs, urlsplit

import pytest

from muster.brokers import rest
from muster.brokers.alpaca import PAGE, AlpacaBroker
from muster.brokers.port import (
    BadCredentials,
    BrokerAway,
    Credentials,
    NewOrder,
    OrderRejected,
    OrderStatus,
    Side,
    SlotTaken,
)
from muster.clock import FakeClock

ACCOUNT = {
    "id": "a-1",
    "currency": "USD",
    "cash": "10.5",
    "equity": "20",
    "buying_power": "10.5",
    "trading_blocked": False,
    "account_blocked": True,
}
ORDER = NewOrder("o-1", "ACME", Side.BUY, Decimal(2))
SUBMITTED = datetime(2026, 1, 2, tzinfo=UTC)


def shown(name: str = "o-1", status: str = "new", filled: str = "0", at: datetime = SUBMITTED) -> dict:
    return {
        "id": f"id-{name}",
        "client_order_id": name,
        "symbol": "ACME",
        "side": "buy",
        "type": "market",
        "qty": "2",
        "filled_qty": filled,
        "filled_avg_price": None,
        "status": status,
        "submitted_at": at.isoformat(),
        "updated_at": at.isoformat(),
    }


Answer = tuple[int, object, dict[str, str]]


class Scripted:
    """A server that answers what the test tells it to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: Callable[[str, str], Answer | None] = lambda method, path: (200, ACCOUNT, {})
        self.connections = 0
        self.hangs_up = False  #: closes after each answer, without having said so in it
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except ConnectionError:
                    self.close_connection = True

            def reply(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.asked.append(f"{self.command} {self.path}")
                answer = outer.answer(self.command, self.path)
                if answer is None:  # cut the connection instead of answering
                    self.close_connection = True
                    return
                status, body, headers = answer
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.close_connection = self.close_connection or outer.hangs_up
                self.wfile.write(content)  # last: from here on the test may change the script

            do_GET = do_POST = do_DELETE = reply

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Scripted]:
    scripted = Scripted()
    yield scripted
    scripted.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(server: Scripted, clock: FakeClock) -> Iterator[AlpacaBroker]:
    adapter = AlpacaBroker(clock)
    adapter.connect(Credentials("alpaca", "key", "secret", server.url))
    server.asked.clear()
    yield adapter
    adapter.close()


def always(status: int, body: object = b"", **headers: str) -> Callable[[str, str], Answer]:
    return lambda method, path: (status, body, {name.replace("_", "-"): v for name, v in headers.items()})


def test_the_account_is_read_exactly(broker: AlpacaBroker) -> None:
    account = broker.account()
    assert (account.cash, account.equity, account.blocked) == (Decimal("10.5"), Decimal(20), True)


def test_a_post_whose_answer_is_lost_is_sent_once(server: Scripted, broker: AlpacaBroker) -> None:
    server.answer = lambda method, path: None
    with pytest.raises(BrokerAway):
        broker.place(ORDER)
    assert server.asked == ["POST /v2/orders"]


def test_a_delete_whose_answer_is_lost_is_sent_once(server: Scripted, broker: AlpacaBroker) -> None:
    server.answer = lambda method, path: (200, shown(), {}) if method == "GET" else None
    with pytest.raises(BrokerAway):
        broker.cancel("o-1")
    assert [asked for asked in server.asked if asked.startswith("DELETE")] == ["DELETE /v2/orders/id-o-1"]


def test_a_read_whose_kept_connection_was_closed_is_sent_again_once(
    server: Scripted, broker: AlpacaBroker
) -> None:
    server.answer = lambda method, path: None
    with pytest.raises(BrokerAway):
        broker.account()
    assert server.asked == ["GET /v2/account"] * 2


def test_a_post_after_the_server_closed_the_idle_connection_goes_out_on_a_new_one(
    server: Scripted, broker: AlpacaBroker
) -> None:
    server.hangs_up = True
    broker.account()
    closed = select.poll()
    closed.register(broker._rest._connection.sock, select.POLLIN)
    assert closed.poll(20_000), "the server did not hang up"
    server.answer = always(200, shown())
    assert broker.place(ORDER).client_order_id == "o-1"
    assert [asked for asked in server.asked if asked.startswith("POST")] == ["POST /v2/orders"]
    assert server.connections == 2


def test_one_connection_serves_many_requests(server: Scripted, broker: AlpacaBroker) -> None:
    for _ in range(5):
        broker.account()
    assert server.connections == 1


def test_a_server_that_never_answers_is_away_after_the_timeout(
    server: Scripted, broker: AlpacaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker._rest.close()
    monkeypatch.setattr(rest, "READ_TIMEOUT", timedelta(milliseconds=100))
    release = threading.Event()

    def hang(method: str, path: str) -> None:
        release.wait(20)

    server.answer = hang
    before = time.monotonic()
    with pytest.raises(BrokerAway, match="timed out"):
        broker.place(ORDER)
    assert time.monotonic() - before < 10
    release.set()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (always(401, {"message": "request is not authorized"}), BadCredentials),
        (always(403, {"message": "forbidden."}), BadCredentials),
        (always(403, {"code": 40310000, "message": "insufficient buying power"}), OrderRejected),
        (always(422, {"message": "qty must be > 0"}), OrderRejected),
        (always(400, {"message": "bad"}), OrderRejected),
        (always(429, {"message": "too many requests"}, Retry_After="3"), BrokerAway),
        (always(500), BrokerAway),
        (always(502, b"<html>bad gateway</html>"), BrokerAway),
        (always(200, b"<html>welcome to the hotel</html>"), BrokerAway),
        (always(302, b"", Location="http://elsewhere.invalid/"), BrokerAway),
    ],
)
def test_what_an_answer_to_an_order_means(
    server: Scripted, broker: AlpacaBroker, answer: Callable[[str, str], Answer], error: type[Exception]
) -> None:
    server.answer = answer
    with pytest.raises(error) as raised:
        broker.place(ORDER)
    assert type(raised.value) is error
    assert "secret" not in str(raised.value)
    assert len(server.asked) == 1


def test_a_rate_limit_carries_the_time_asked_for(server: Scripted, broker: AlpacaBroker) -> None:
    server.answer = always(429, b"", Retry_After="3")
    with pytest.raises(BrokerAway) as away:
        broker.account()
    assert away.value.after == timedelta(seconds=3)


def test_a_repeated_id_that_cannot_be_read_yet_is_away_not_lost(
    server: Scripted, broker: AlpacaBroker
) -> None:
    server.answer = lambda method, path: (
        (422, {"message": "client_order_id must be unique"}, {}) if method == "POST" else (404, {}, {})
    )
    with pytest.raises(BrokerAway, match="cannot be read yet"):
        broker.place(ORDER)


@pytest.mark.parametrize(
    ("status", "filled", "means"),
    [
        ("pending_new", "0", OrderStatus.ACCEPTED),
        ("accepted", "0", OrderStatus.ACCEPTED),
        ("held", "0", OrderStatus.ACCEPTED),
        ("partially_filled", "1", OrderStatus.PARTIAL),
        ("pending_cancel", "1", OrderStatus.PARTIAL),
        ("filled", "2", OrderStatus.FILLED),
        ("canceled", "1", OrderStatus.CANCELLED),
        ("replaced", "0", OrderStatus.CANCELLED),
        ("rejected", "0", OrderStatus.REJECTED),
        ("expired", "0", OrderStatus.EXPIRED),
        ("done_for_day", "0", OrderStatus.EXPIRED),
        ("a_word_of_next_year", "0", OrderStatus.ACCEPTED),
    ],
)
def test_the_states_of_an_order(
    server: Scripted, broker: AlpacaBroker, status: str, filled: str, means: OrderStatus
) -> None:
    server.answer = always(200, shown(status=status, filled=filled))
    found = broker.get("o-1")
    assert found is not None
    assert found.status is means


def test_a_client_id_is_quoted(server: Scripted, broker: AlpacaBroker) -> None:
    server.answer = always(404, {})
    assert broker.get("a b&c=/ü") is None
    [asked] = server.asked
    assert parse_qs(urlsplit(asked.split(" ")[1]).query) == {"client_order_id": ["a b&c=/ü"]}


def test_open_orders_of_one_instant_are_not_lost_between_pages(
    server: Scripted, broker: AlpacaBroker
) -> None:
    # The last order of the first page and the first of the second were submitted in the same microsecond.
    times = [SUBMITTED + timedelta(seconds=min(number, PAGE - 1)) for number in range(PAGE + 3)]
    orders = [shown(f"o-{number}", at=at) for number, at in enumerate(times)]

    def page(method: str, path: str) -> Answer:
        after = parse_qs(urlsplit(path).query).get("after", ["2000-01-01T00:00:00+00:00"])[0]
        matching = [
            o for o in orders if datetime.fromisoformat(o["submitted_at"]) > datetime.fromisoformat(after)
        ]
        return 200, matching[:PAGE], {}

    server.answer = page
    assert [order.client_order_id for order in broker.open_orders()] == [o["client_order_id"] for o in orders]


def test_a_refused_handshake_means_a_taken_slot_and_the_pauses_grow(
    server: Scripted, broker: AlpacaBroker, clock: FakeClock
) -> None:
    server.answer = always(429)
    pauses = []
    for _ in range(8):
        with pytest.raises(SlotTaken) as taken:
            broker.updates(timedelta(minutes=1))
        assert taken.value.after is not None
        pauses.append(taken.value.after)
    assert server.asked == ["GET /stream"] * 8
    assert pauses[0] <= timedelta(seconds=0.5)
    assert timedelta(seconds=15) <= pauses[-1] <= timedelta(seconds=30)


def test_while_a_pause_lasts_nothing_is_sent(
    server: Scripted, broker: AlpacaBroker, clock: FakeClock
) -> None:
    server.answer = always(503)
    for _ in range(2):
        with pytest.raises(BrokerAway, match="503"):
            broker.updates(timedelta())
    assert server.asked == ["GET /stream"]
    clock.advance(1)
    with pytest.raises(BrokerAway):
        broker.updates(timedelta())
    assert server.asked == ["GET /stream"] * 2


def test_nothing_listening_is_away(server: Scripted) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(BrokerAway):
            AlpacaBroker(FakeClock()).connect(Credentials("alpaca", "key", "secret", url))


@pytest.mark.parametrize("url", ["", "ftp://host", "host:80"])
def test_a_wrong_url_is_a_matter_for_a_person(url: str) -> None:
    with pytest.raises(BadCredentials, match="url"):
        AlpacaBroker(FakeClock()).connect(Credentials("paper", "key", "secret", url or None))


@pytest.mark.parametrize("secret", ["canary\n", "canary\u00fc", "canary\u20ac", "canary\r\nX-Evil: 1"])
def test_a_key_that_cannot_be_sent_is_not_quoted(server: Scripted, secret: str) -> None:
    with pytest.raises(BadCredentials) as bad:
        AlpacaBroker(FakeClock()).connect(Credentials("alpaca", "key", secret, server.url))
    assert "canary" not in "".join(traceback.format_exception(bad.value))
    assert server.asked == []


def test_a_worker_pays_for_little() -> None:
    # Thousands of these processes run: a package that slips in here is paid for thousands of times.
    heavy = ("asyncio", "httpx", "pydantic", "pandas", "numpy", "requests", "urllib3", "alpaca", "ccxt")
    code = f"import sys, muster.brokers.alpaca; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=dict(os.environ),
        timeout=60,
    )
    assert done.stdout.strip() == "[]"
