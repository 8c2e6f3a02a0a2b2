"""One contract over every broker: the alpaca adapter at a real paper server, and ccxt at a stand-in."""

from __future__ import annotations

import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from local.paper.process import PaperBroker, paper_broker
from muster.brokers.connect import broker_named, connect
from muster.brokers.port import (
    BadCredentials,
    Broker,
    BrokerAway,
    Credentials,
    NewOrder,
    Opened,
    OrderRejected,
    OrderStatus,
    OrderType,
    Side,
    TimeInForce,
    Update,
)
from muster.clock import Clock, FakeClock, SystemClock
from tests.contract.ccxt_stand_in import Venue, stand_in

SECOND = timedelta(seconds=1)


@dataclass
class Market:
    """A broker's other side, as the tests need it."""

    credentials: Credentials
    symbol: str
    clock: Clock
    placed: Callable[[str], int]  #: how many orders of this client id the broker itself holds
    leave: Callable[[], None]  #: be away
    come_back: Callable[[], None]

    def connect(self) -> Broker:
        return connect(self.credentials, self.clock)

    def order(self, **changes: object) -> NewOrder:
        return replace(NewOrder(f"o-{uuid.uuid4()}", self.symbol, Side.BUY, Decimal(2)), **changes)

    def resting(self) -> NewOrder:
        """An order that the price never reaches."""
        return self.order(type=OrderType.LIMIT, limit_price=Decimal("0.5"), time_in_force=TimeInForce.GTC)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PaperBroker]:
    with paper_broker(tmp_path_factory.mktemp("paper")) as running:
        yield running


@pytest.fixture(params=["paper", "ccxt"])
def market(
    request: pytest.FixtureRequest, server: PaperBroker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Market]:
    if request.param == "paper":
        yield Market(
            Credentials("paper", f"key-{uuid.uuid4()}", "good", server.url),
            "ACME",
            SystemClock(),
            lambda name: sum(order["client_order_id"] == name for order in server.orders()),
            server.kill,
            lambda: None if server.process else server.start(),
        )
        if server.process is None:
            server.start()
        return
    venue = Venue()
    monkeypatch.setitem(__import__("sys").modules, "ccxt", stand_in(venue))
    options = {"exchange": "memory", "symbols": ["ACME/USDT"]}
    yield Market(
        Credentials("ccxt", "key", "good", None, options),
        "ACME/USDT",
        FakeClock(),
        lambda name: sum(order["clientOrderId"] == name for order in venue.orders.values()),
        lambda: setattr(venue, "away", True),
        lambda: setattr(venue, "away", False),
    )


@pytest.fixture
def broker(market: Market) -> Iterator[Broker]:
    session = market.connect()
    yield session
    session.close()


def until_final(broker: Broker, name: str) -> OrderStatus:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        found = broker.get(name)
        if found is not None and found.status.final:
            return found.status
    raise AssertionError(f"{name} never came to an end")


def until(broker: Broker, wanted: Callable[[object], bool]) -> Any:
    """What `updates` returned or raised, once it is what the test waits for."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            told: object = broker.updates(SECOND)
        except BrokerAway as away:
            told = away
        if wanted(told):
            return told
    raise AssertionError("it never came")


def test_connecting_proves_the_credentials_and_shows_the_account(broker: Broker) -> None:
    account = broker.account()
    assert account.buying_power > 0
    assert account.account_id
    assert not account.blocked


def test_wrong_credentials_are_told_from_a_broker_that_is_away(market: Market) -> None:
    market.connect().close()
    with pytest.raises(BadCredentials):
        connect(replace(market.credentials, secret="bad"), market.clock)


def test_a_market_order_is_filled_and_can_be_read_by_its_client_id(market: Market, broker: Broker) -> None:
    order = market.order()
    placed = broker.place(order)
    assert (placed.client_order_id, placed.symbol, placed.side) == (
        order.client_order_id,
        order.symbol,
        Side.BUY,
    )
    assert until_final(broker, order.client_order_id) is OrderStatus.FILLED
    found = broker.get(order.client_order_id)
    assert found is not None
    assert found.filled_qty == found.qty == 2
    assert found.average_price is not None


def test_placing_an_id_again_returns_the_order_that_is_there(market: Market, broker: Broker) -> None:
    order = market.order()
    first = broker.place(order)
    until_final(broker, order.client_order_id)
    again = broker.place(order)
    assert again.broker_order_id == first.broker_order_id
    assert again.status is OrderStatus.FILLED
    assert market.placed(order.client_order_id) == 1


def test_a_new_session_recognises_an_order_of_the_one_before(market: Market, broker: Broker) -> None:
    order = market.resting()
    first = broker.place(order)
    broker.close()
    successor = market.connect()
    assert successor.place(order).broker_order_id == first.broker_order_id
    assert [found.client_order_id for found in successor.open_orders()] == [order.client_order_id]
    assert market.placed(order.client_order_id) == 1
    successor.close()


def test_an_id_that_belongs_to_a_different_order_is_rejected(market: Market, broker: Broker) -> None:
    order = market.order()
    broker.place(order)
    with pytest.raises(OrderRejected, match="different order"):
        broker.place(replace(order, qty=Decimal(3)))


def test_an_unknown_order_is_none(market: Market, broker: Broker) -> None:
    assert broker.get("nobody") is None
    assert broker.cancel("nobody") is None


@pytest.mark.parametrize("qty", [Decimal(-1), Decimal(100_000_000)], ids=["not a quantity", "too expensive"])
def test_a_refused_order_says_why_and_leaves_nothing(market: Market, broker: Broker, qty: Decimal) -> None:
    order = market.order(qty=qty)
    with pytest.raises(OrderRejected, match=r"must be|insufficient"):
        broker.place(order)
    assert broker.get(order.client_order_id) is None


def test_a_resting_order_is_open_until_it_is_cancelled(market: Market, broker: Broker) -> None:
    first, second = market.resting(), market.resting()
    assert broker.place(first).status is OrderStatus.ACCEPTED
    broker.place(second)
    assert [order.client_order_id for order in broker.open_orders()] == [
        first.client_order_id,
        second.client_order_id,
    ]
    broker.cancel(first.client_order_id)
    assert until_final(broker, first.client_order_id) is OrderStatus.CANCELLED
    assert [order.client_order_id for order in broker.open_orders()] == [second.client_order_id]
    again = broker.cancel(first.client_order_id)
    assert again is not None
    assert again.status is OrderStatus.CANCELLED


def test_cancelling_a_filled_order_leaves_it_filled(market: Market, broker: Broker) -> None:
    order = market.order()
    broker.place(order)
    until_final(broker, order.client_order_id)
    found = broker.cancel(order.client_order_id)
    assert found is not None
    assert found.status is OrderStatus.FILLED


def test_the_stream_opens_first_and_then_tells_of_a_fill(market: Market, broker: Broker) -> None:
    assert broker.updates(SECOND) == Opened()
    order = market.order()
    broker.place(order)
    told = until(broker, lambda told: isinstance(told, Update) and told.order.status is OrderStatus.FILLED)
    assert told.order.client_order_id == order.client_order_id


def test_without_news_updates_returns_none_after_the_timeout(broker: Broker) -> None:
    assert broker.updates(SECOND) == Opened()
    assert broker.updates(timedelta(milliseconds=50)) is None


def test_a_broker_that_is_away_says_so_and_the_session_goes_on_when_it_is_back(
    market: Market, broker: Broker
) -> None:
    order = market.resting()
    broker.place(order)
    assert broker.updates(SECOND) == Opened()
    market.leave()
    with pytest.raises(BrokerAway) as away:
        broker.account()
    assert "canary" not in "".join(traceback.format_exception(away.value)), (
        "a signed url must not reach a log"
    )
    with pytest.raises(BrokerAway):
        broker.place(market.order())
    assert isinstance(until(broker, lambda told: isinstance(told, BrokerAway)), BrokerAway)
    market.come_back()
    assert [found.client_order_id for found in broker.open_orders()] == [order.client_order_id]
    until(broker, lambda told: told == Opened())


def test_closing_twice_is_fine_and_a_closed_session_does_nothing(market: Market) -> None:
    session = market.connect()
    assert session.updates(SECOND) == Opened()
    session.close()
    session.close()
    with pytest.raises(BrokerAway):
        session.place(market.order())
    with pytest.raises(BrokerAway):
        session.updates(timedelta())


def test_a_fill_check_can_connect_while_a_worker_holds_the_stream(market: Market, broker: Broker) -> None:
    assert broker.updates(SECOND) == Opened()
    order = market.resting()
    broker.place(order)
    check = market.connect()
    found = check.get(order.client_order_id)
    assert found is not None
    assert found.status is OrderStatus.ACCEPTED
    check.close()
    assert not isinstance(broker.updates(timedelta(milliseconds=50)), Opened)


def test_an_unknown_broker_is_a_matter_for_a_person() -> None:
    with pytest.raises(BadCredentials, match="alpaca, paper, ccxt"):
        broker_named("robinhood")


def test_ccxt_that_is_not_installed_is_a_matter_for_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ccxt", None)
    with pytest.raises(BadCredentials, match=r"muster\[ccxt\]"):
        connect(Credentials("ccxt", "key", "good"))
