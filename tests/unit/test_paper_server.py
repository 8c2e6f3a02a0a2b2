"""The paper server's faults and its book, over real sockets, through the adapter a worker uses."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner
from websockets.exceptions import ConnectionClosedError
from websockets.sync.client import connect as open_websocket

from local.paper.audit import overlaps
from local.paper.faults import Faults
from local.paper.process import PaperBroker, paper_broker
from muster.brokers.connect import connect
from muster.brokers.port import (
    BadCredentials,
    Broker,
    BrokerAway,
    Credentials,
    NewOrder,
    Opened,
    Order,
    OrderStatus,
    OrderType,
    Side,
    SlotTaken,
    TimeInForce,
    Update,
)

SECOND = timedelta(seconds=1)
AT_REST = {name: getattr(Faults(), name) for name in Faults.__slots__}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaperBroker]:
    folder = tmp_path_factory.mktemp("paper")
    with paper_broker(folder) as server:
        yield server
    assert (folder / "paper.log").read_text() == "", "a fault on purpose must not be an error of the server"


@pytest.fixture
def server(running: PaperBroker) -> Iterator[PaperBroker]:
    yield running
    running.faults(**AT_REST)


@pytest.fixture
def key() -> str:
    return f"key-{uuid.uuid4()}"


@pytest.fixture
def broker(server: PaperBroker, key: str) -> Iterator[Broker]:
    session = connect(Credentials("paper", key, "secret", server.url))
    yield session
    session.close()


def market(name: str = "", qty: int = 3) -> NewOrder:
    return NewOrder(name or str(uuid.uuid4()), "ACME", Side.BUY, Decimal(qty))


def resting(time_in_force: TimeInForce = TimeInForce.GTC) -> NewOrder:
    name = str(uuid.uuid4())
    return NewOrder(name, "ACME", Side.BUY, Decimal(1), OrderType.LIMIT, Decimal("0.5"), time_in_force)


def eventually(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 20
    while not (found := look()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)
    return found


def ended(broker: Broker, name: str) -> Order:
    return eventually(lambda: (found := broker.get(name)) and found.status.final and found)


def updates_of(broker: Broker, name: str, count: int) -> list[Update]:
    heard: list[Update] = []

    def enough() -> bool:
        update = broker.updates(SECOND)
        if isinstance(update, Update) and update.order.client_order_id == name:
            heard.append(update)
        return len(heard) == count

    eventually(enough)
    return heard


def in_book(server: PaperBroker, name: str) -> dict[str, Any] | None:
    return next((order for order in server.orders() if order["client_order_id"] == name), None)


def test_latency_delays_every_answer(server: PaperBroker, broker: Broker) -> None:
    server.faults(latency_s=0.2)
    before = time.monotonic()
    broker.account()
    assert time.monotonic() - before >= 0.2


def test_a_rate_limit_says_when_to_come_back(server: PaperBroker, broker: Broker) -> None:
    server.faults(rate_limited=1.0, retry_after_s=7)
    with pytest.raises(BrokerAway) as away:
        broker.account()
    assert away.value.after == timedelta(seconds=7)


def test_a_server_error_does_nothing(server: PaperBroker, broker: Broker) -> None:
    server.faults(server_error=1.0)
    order = market()
    with pytest.raises(BrokerAway, match="500"):
        broker.place(order)
    assert in_book(server, order.client_order_id) is None


def test_a_server_error_may_quote_what_was_sent(server: PaperBroker, broker: Broker, key: str) -> None:
    server.faults(server_error=1.0, echo_headers=True)
    with pytest.raises(BrokerAway, match=key):
        broker.account()


def test_a_lost_request_leaves_no_order_and_can_be_placed_again(server: PaperBroker, broker: Broker) -> None:
    server.faults(lost_request=1.0)
    order = market()
    with pytest.raises(BrokerAway):
        broker.place(order)
    assert in_book(server, order.client_order_id) is None
    server.faults(lost_request=0.0)
    broker.place(order)
    assert ended(broker, order.client_order_id).status is OrderStatus.FILLED


def test_a_lost_answer_leaves_one_order_that_a_repeat_finds(server: PaperBroker, broker: Broker) -> None:
    server.faults(lost_answer=1.0)
    order = market()
    with pytest.raises(BrokerAway):
        broker.place(order)
    server.faults(lost_answer=0.0)
    kept = in_book(server, order.client_order_id)
    assert kept is not None
    assert kept["attempts"] == 1, "the adapter must not repeat a POST by itself"
    assert broker.place(order).broker_order_id == kept["id"]
    ended(broker, order.client_order_id)
    kept = in_book(server, order.client_order_id)
    assert kept is not None
    assert (kept["attempts"], kept["fills"], kept["filled_qty"]) == (2, 1, "3")


def test_a_dropped_stream_is_noticed_and_opened_again(server: PaperBroker, broker: Broker, key: str) -> None:
    assert broker.updates(SECOND) == Opened()
    assert server.drop_streams(key) == 1
    with pytest.raises(BrokerAway):
        broker.updates(timedelta(seconds=20))
    assert eventually(lambda: broker_says(broker, SECOND)) == Opened()
    first, second = (session for session in server.sessions() if session["key_id"] == key)
    assert (first["goodbye"], second["closed_at"]) == (0, None)


def broker_says(broker: Broker, timeout: timedelta) -> Update | Opened | BrokerAway | None:
    """The next word of `updates` that is not a complaint about the stream."""
    try:
        return broker.updates(timeout)
    except BrokerAway:
        return None


def test_a_second_stream_of_a_key_waits_until_the_first_says_goodbye(
    server: PaperBroker, broker: Broker, key: str
) -> None:
    server.faults(slot_hold_s=60.0)
    assert broker.updates(SECOND) == Opened()
    successor = connect(Credentials("paper", key, "secret", server.url))
    with pytest.raises(SlotTaken):
        successor.updates(timedelta())
    with pytest.raises(SlotTaken):  # while it waits it goes on saying why
        successor.updates(timedelta())
    broker.close()
    assert eventually(lambda: broker_says(successor, SECOND)) == Opened()
    successor.close()
    assert overlaps((s for s in server.sessions() if s["key_id"] == key), time.time()) == {}


def test_a_lost_stream_holds_the_slot(server: PaperBroker, broker: Broker, key: str) -> None:
    server.faults(slot_hold_s=60.0)
    assert broker.updates(SECOND) == Opened()
    server.drop_streams(key)
    eventually(lambda: [s for s in server.sessions() if s["key_id"] == key and s["closed_at"]])
    successor = connect(Credentials("paper", key, "secret", server.url))
    with pytest.raises(SlotTaken):
        successor.updates(timedelta())
    successor.close()


def test_a_killed_client_is_a_lost_stream_and_its_successor_waits(server: PaperBroker, key: str) -> None:
    server.faults(slot_hold_s=0.5)
    code = (
        "import datetime, sys, time\n"
        "from muster.brokers.connect import connect\n"
        "from muster.brokers.port import Credentials\n"
        "broker = connect(Credentials('paper', sys.argv[1], 'secret', sys.argv[2]))\n"
        "print(broker.updates(datetime.timedelta(seconds=20)), flush=True)\n"
        "time.sleep(60)\n"
    )
    words = [sys.executable, "-c", code, key, server.url]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"Opened()\n"
        worker.kill()
    [lost] = eventually(lambda: [s for s in server.sessions() if s["key_id"] == key and s["closed_at"]])
    assert lost["goodbye"] == 0
    successor = connect(Credentials("paper", key, "secret", server.url))
    assert eventually(lambda: broker_says(successor, SECOND)) == Opened()
    successor.close()
    opened = [s["opened_at"] for s in server.sessions() if s["key_id"] == key][1]
    assert opened - lost["closed_at"] >= 0.5


def test_three_hundred_sessions_are_cheap(server: PaperBroker) -> None:
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    before = process.memory_full_info().pss
    sessions = [
        connect(Credentials("paper", f"many-{uuid.uuid4()}", "secret", server.url)) for _ in range(300)
    ]
    try:
        for session in sessions:
            assert session.updates(timedelta(seconds=20)) == Opened()
        for number, session in enumerate(sessions):
            session.place(market(f"many-{number}"))
        for number, session in enumerate(sessions):
            assert updates_of(session, f"many-{number}", 2)[-1].order.status is OrderStatus.FILLED
        assert process.memory_full_info().pss - before < 60 * 1024 * 1024
    finally:
        for session in sessions:
            session.close()


def test_without_the_limit_the_audit_shows_the_overlap(server: PaperBroker, broker: Broker, key: str) -> None:
    server.faults(one_stream=False)
    assert broker.updates(SECOND) == Opened()
    second = connect(Credentials("paper", key, "secret", server.url))
    assert second.updates(SECOND) == Opened()
    second.close()
    assert key in overlaps(server.sessions(), time.time())


def test_partial_fills_add_up(server: PaperBroker, broker: Broker) -> None:
    server.faults(partial=1.0)
    broker.updates(SECOND)
    order = market(qty=10)
    broker.place(order)
    new, *parts = updates_of(broker, order.client_order_id, 4)
    assert [update.event for update in (new, *parts)] == ["new", "partial_fill", "partial_fill", "fill"]
    assert [update.order.status for update in parts] == ["partial", "partial", "filled"]
    assert sum(update.qty for update in parts) == 10
    kept = in_book(server, order.client_order_id)
    assert kept is not None
    assert (kept["fills"], kept["status"]) == (3, "filled")


def test_a_late_fill_comes_late(server: PaperBroker, broker: Broker) -> None:
    server.faults(late=1.0, late_by_s=0.5)
    order = market()
    placed = broker.place(order)
    found = ended(broker, order.client_order_id)
    assert found.updated_at - placed.submitted_at >= timedelta(seconds=0.5)


def test_a_duplicate_update_says_nothing_new(server: PaperBroker, broker: Broker) -> None:
    server.faults(duplicate=1.0)
    broker.updates(SECOND)
    order = market()
    broker.place(order)
    _, _, fill, again = updates_of(broker, order.client_order_id, 4)
    assert fill == again
    assert not again.order.newer_than(fill.order)
    kept = in_book(server, order.client_order_id)
    assert kept is not None
    assert kept["fills"] == 1


def test_an_update_out_of_order_does_not_take_a_fill_back(server: PaperBroker, broker: Broker) -> None:
    server.faults(out_of_order=0.5, partial=1.0)
    broker.updates(SECOND)
    orders = [market(qty=10) for _ in range(12)]
    for order in orders:
        broker.place(order)
    known: dict[str, Order] = {}
    overtaken = heard = 0

    def all_heard() -> bool:
        nonlocal heard, overtaken
        update = broker.updates(SECOND)
        if isinstance(update, Update):
            heard += 1
            name = update.order.client_order_id
            if name not in known or update.order.newer_than(known[name]):
                known[name] = update.order
            else:
                overtaken += 1
        return heard == 4 * len(orders)

    eventually(all_heard)
    assert overtaken > 0, "no update was out of order"
    assert {order.status for order in known.values()} == {OrderStatus.FILLED}


def test_orders_can_be_rejected_after_they_were_accepted(server: PaperBroker, broker: Broker) -> None:
    server.faults(rejected=1.0)
    order = market()
    assert broker.place(order).status is OrderStatus.ACCEPTED
    assert ended(broker, order.client_order_id).status is OrderStatus.REJECTED


def test_a_day_order_expires_and_an_immediate_one_is_cancelled(server: PaperBroker, broker: Broker) -> None:
    server.faults(expire_after_s=0.1)
    ends = {TimeInForce.DAY: OrderStatus.EXPIRED, TimeInForce.IOC: OrderStatus.CANCELLED}
    for time_in_force, end in ends.items():
        order = resting(time_in_force)
        broker.place(order)
        assert ended(broker, order.client_order_id).status is end


def test_a_skewed_clock_shows_in_every_time(server: PaperBroker, broker: Broker) -> None:
    server.faults(clock_skew_s=-3600.0)
    placed = broker.place(market())
    assert datetime.now(UTC) - placed.submitted_at > timedelta(minutes=59)


def test_a_stream_can_be_lost_at_an_update(server: PaperBroker, broker: Broker) -> None:
    assert broker.updates(SECOND) == Opened()
    server.faults(lost_stream=1.0)
    broker.place(market())
    with pytest.raises(BrokerAway):
        broker.updates(timedelta(seconds=20))


def test_the_same_seed_gives_the_same_faults_and_another_seed_others(tmp_path: Path) -> None:
    def fills(folder: str, seed: int) -> list[int]:
        with paper_broker(tmp_path / folder, seed=seed, faults={"partial": 0.5}) as server:
            broker = connect(Credentials("paper", "key", "secret", server.url))
            for number in range(30):
                broker.place(market(f"order-{number}"))
            eventually(lambda: not broker.open_orders())
            broker.close()
            return [order["fills"] for order in server.orders()]

    first = fills("first", 7)
    assert set(first) == {1, 3}
    assert fills("again", 7) == first
    assert fills("other", 8) != first


def test_the_book_survives_the_process(tmp_path: Path) -> None:
    with paper_broker(tmp_path, faults={"late": 1.0, "late_by_s": 60}) as server:
        broker = connect(Credentials("paper", "key", "secret", server.url))
        assert broker.updates(SECOND) == Opened()
        pending, waiting = market(), resting()
        broker.place(pending)
        broker.place(waiting)
        server.kill()
        server.start()
        assert ended(broker, pending.client_order_id).status is OrderStatus.FILLED
        assert [order.client_order_id for order in broker.open_orders()] == [waiting.client_order_id]
        assert all(session["closed_at"] for session in server.sessions())
        broker.close()


def test_with_given_accounts_nobody_else_gets_in(tmp_path: Path) -> None:
    with paper_broker(tmp_path, accounts={"known": "secret"}) as server:
        connect(Credentials("paper", "known", "secret", server.url)).close()
        for key_id, secret in (("known", "wrong"), ("unknown", "secret")):
            with pytest.raises(BadCredentials):
                connect(Credentials("paper", key_id, secret, server.url))


def test_a_stream_with_a_wrong_secret_is_bad_credentials(
    server: PaperBroker, broker: Broker, key: str
) -> None:
    with open_websocket(f"ws{server.url.removeprefix('http')}/stream") as stream:
        stream.send(json.dumps({"action": "authenticate", "data": {"key_id": key, "secret_key": "wrong"}}))
        answer = json.loads(stream.recv(timeout=10))
    assert answer["data"]["status"] == "unauthorized"
    assert "message" not in answer["data"]


@pytest.mark.parametrize("garbage", ["", "[]", "{}", '{"action": "listen", "data": {}}'])
def test_garbage_on_the_stream_ends_only_that_connection(
    server: PaperBroker, broker: Broker, garbage: str
) -> None:
    assert broker.updates(SECOND) == Opened()
    with open_websocket(f"ws{server.url.removeprefix('http')}/stream") as stream:
        stream.send(garbage)
        with pytest.raises(ConnectionClosedError, match="1008"):
            stream.recv(timeout=10)
    assert broker.updates(timedelta(milliseconds=10)) is None


@pytest.mark.parametrize(
    "knobs",
    [b'{"no_such": 1}', b'{"partial": "much"}', b'{"partial": true}', b'{"late": -1}', b"[]", b"{"],
)
def test_a_knob_that_does_not_exist_or_fit_is_refused(server: PaperBroker, knobs: bytes) -> None:
    request = urllib.request.Request(f"{server.url}/admin/faults", knobs, method="PATCH")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    with refused.value as answer:
        assert answer.code == 422


def test_the_command_serves_until_it_is_stopped() -> None:
    code = "import typer; from cli.paper import paper_broker; typer.run(paper_broker)"
    words = ["--port", "0", "--open-accounts", "--cash", "500", "--fault", "clock_skew_s=9"]
    with subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            broker = connect(Credentials("paper", "key", "secret", url))
            assert broker.account().cash == 500
            broker.close()
        finally:
            process.terminate()
        assert process.wait(20) == -signal.SIGTERM, "the server ends by the signal, after its goodbyes"


@pytest.mark.parametrize(
    ("words", "said"),
    [([], "--open-accounts"), (["--open-accounts", "--fault", "nope=1"], "no fault 'nope'")],
)
def test_the_command_says_what_is_missing(words: list[str], said: str) -> None:
    import typer

    from cli.paper import paper_broker as command

    app = typer.Typer()
    app.command()(command)
    result = CliRunner().invoke(app, words, env={"TERM": "dumb", "COLUMNS": "200"})
    assert result.exit_code == 2
    assert said in result.output
