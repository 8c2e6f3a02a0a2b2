"""The official SDK as an independent client: what it understands of our paper server is Alpaca's API."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest
from alpaca.common.exceptions import APIError
from alpaca.trading.client import TradingClient
from alpaca.trading.enums import (
    OrderSide,
    OrderStatus,
    PositionSide,
    QueryOrderStatus,
    TimeInForce,
    TradeEvent,
)
from alpaca.trading.models import TradeUpdate
from alpaca.trading.requests import GetOrdersRequest, LimitOrderRequest, MarketOrderRequest
from alpaca.trading.stream import TradingStream

from local.paper.process import PaperBroker, paper_broker


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaperBroker]:
    with paper_broker(tmp_path_factory.mktemp("paper")) as running:
        yield running


@pytest.fixture
def key() -> str:
    return f"key-{uuid.uuid4()}"


@pytest.fixture
def client(server: PaperBroker, key: str) -> TradingClient:
    return TradingClient(key, "secret", url_override=server.url)


def market(qty: float = 2, side: OrderSide = OrderSide.BUY, name: str | None = None) -> MarketOrderRequest:
    return MarketOrderRequest(
        symbol="ACME", qty=qty, side=side, time_in_force=TimeInForce.DAY, client_order_id=name
    )


def resting(name: str) -> LimitOrderRequest:
    return LimitOrderRequest(
        symbol="ACME",
        qty=1,
        side=OrderSide.BUY,
        time_in_force=TimeInForce.GTC,
        limit_price=0.5,
        client_order_id=name,
    )


def filled(client: TradingClient, name: str) -> None:
    deadline = time.monotonic() + 20
    while client.get_order_by_client_id(name).status != OrderStatus.FILLED:
        assert time.monotonic() < deadline, f"{name} was never filled"


@contextmanager
def listening(server: PaperBroker, key: str) -> Iterator[queue.Queue[TradeUpdate]]:
    """The SDK's own stream in its own thread, from the moment the server listens to it."""
    heard: queue.Queue[TradeUpdate] = queue.Queue()
    stream = TradingStream(key, "secret", url_override=f"ws{server.url.removeprefix('http')}/stream")

    async def hear(update: TradeUpdate) -> None:
        heard.put(update)

    stream.subscribe_trade_updates(hear)
    thread = threading.Thread(target=stream.run)
    thread.start()
    deadline = time.monotonic() + 20
    while not stream._running:
        assert time.monotonic() < deadline, "the SDK's stream never ran"
        time.sleep(0.01)

    async def answered() -> None:
        # It does not wait for the answer to "listen"; the answer to a ping sent after it says the same.
        await (await stream._ws.ping())

    asyncio.run_coroutine_threadsafe(answered(), stream._loop).result(10)
    try:
        yield heard
    finally:
        # Its own stop() is only seen when a five second read ends; a close is seen at once.
        asyncio.run_coroutine_threadsafe(stream.stop_ws(), stream._loop).result(10)
        asyncio.run_coroutine_threadsafe(stream.close(), stream._loop).result(10)
        thread.join(20)
        assert not thread.is_alive()


def test_the_account(client: TradingClient) -> None:
    account = client.get_account()
    assert account.status == "ACTIVE"
    assert float(account.cash) == float(account.buying_power) == float(account.equity) == 1_000_000
    assert not account.trading_blocked


def test_a_market_order_is_filled_and_becomes_a_position(client: TradingClient) -> None:
    name = str(uuid.uuid4())
    order = client.submit_order(market(name=name))
    assert order.client_order_id == name
    filled(client, name)
    done = client.get_order_by_id(order.id)
    assert float(done.filled_qty) == 2
    [position] = client.get_all_positions()
    assert (position.symbol, float(position.qty), position.side) == ("ACME", 2, PositionSide.LONG)
    assert float(position.avg_entry_price) == float(done.filled_avg_price)
    spent = 1_000_000 - float(client.get_account().cash)
    assert spent == pytest.approx(2 * float(done.filled_avg_price), abs=0.01)


def test_selling_it_again_ends_the_position(client: TradingClient) -> None:
    for side in (OrderSide.BUY, OrderSide.SELL):
        name = str(uuid.uuid4())
        client.submit_order(market(side=side, name=name))
        filled(client, name)
    assert client.get_all_positions() == []


def test_a_resting_order_is_listed_and_cancelled(client: TradingClient) -> None:
    first, second = (client.submit_order(resting(name)) for name in ("first", "second"))
    assert [order.id for order in client.get_orders()] == [second.id, first.id]
    client.cancel_order_by_id(first.id)
    assert client.get_order_by_client_id("first").status == OrderStatus.CANCELED
    with pytest.raises(APIError) as refused:
        client.cancel_order_by_id(first.id)
    assert refused.value.status_code == 422
    closed = client.get_orders(GetOrdersRequest(status=QueryOrderStatus.CLOSED, symbols=["ACME"]))
    assert [order.id for order in closed] == [first.id]
    [ended] = client.cancel_orders()
    assert (ended.id, ended.status) == (second.id, 200)


def test_a_repeated_client_order_id_is_refused(client: TradingClient) -> None:
    client.submit_order(resting("twice"))
    with pytest.raises(APIError) as refused:
        client.submit_order(resting("twice"))
    assert refused.value.status_code == 422
    assert refused.value.message == "client_order_id must be unique"


@pytest.mark.parametrize(("qty", "status"), [(10_000_000, 403), (0.0, 422)])
def test_an_order_that_cannot_be_is_refused(client: TradingClient, qty: float, status: int) -> None:
    with pytest.raises(APIError) as refused:
        client.submit_order(market(qty=qty))
    assert refused.value.status_code == status


def test_an_unknown_order_is_not_found(client: TradingClient) -> None:
    with pytest.raises(APIError) as refused:
        client.get_order_by_client_id("nobody")
    assert refused.value.status_code == 404


def test_a_wrong_secret_is_refused(client: TradingClient, server: PaperBroker, key: str) -> None:
    client.get_account()
    with pytest.raises(APIError) as refused:
        TradingClient(key, "another", url_override=server.url).get_account()
    assert refused.value.status_code == 401


def test_accounts_do_not_see_each_other(client: TradingClient, server: PaperBroker) -> None:
    order = client.submit_order(resting("mine"))
    other = TradingClient(f"key-{uuid.uuid4()}", "secret", url_override=server.url)
    assert other.get_orders() == []
    with pytest.raises(APIError) as refused:
        other.cancel_order_by_id(order.id)
    assert refused.value.status_code == 404


def test_the_clock(client: TradingClient) -> None:
    clock = client.get_clock()
    assert clock.is_open
    assert abs((datetime.now(UTC) - clock.timestamp).total_seconds()) < 60
    assert clock.next_close > clock.timestamp


def test_the_stream_tells_of_new_and_filled(client: TradingClient, server: PaperBroker, key: str) -> None:
    with listening(server, key) as heard:
        client.submit_order(market(name="streamed"))
        new, fill = heard.get(timeout=20), heard.get(timeout=20)
    assert (new.event, fill.event) == (TradeEvent.NEW, TradeEvent.FILL)
    assert fill.order.client_order_id == "streamed"
    assert fill.order.status == OrderStatus.FILLED
    assert (fill.qty, fill.position_qty) == (2, 2)
    assert fill.price == float(fill.order.filled_avg_price)
    assert fill.execution_id is not None


def test_the_stream_tells_of_a_cancel(client: TradingClient, server: PaperBroker, key: str) -> None:
    with listening(server, key) as heard:
        order = client.submit_order(resting("cancelled"))
        client.cancel_order_by_id(order.id)
        events = [heard.get(timeout=20).event for _ in range(2)]
    assert events == [TradeEvent.NEW, TradeEvent.CANCELED]
