"""The paper broker's prices, book, knobs and audit, without a server."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from local.paper.audit import overlaps
from local.paper.book import Book, DuplicateOrder
from local.paper.faults import Faults
from local.paper.prices import CENT, chance, price
from supervisor.market.data import CANDLE_S, Market

NOW = 1_700_000_000.0


@pytest.fixture
def book() -> Book:
    book = Book()
    book.create_account("key", "secret", Decimal(1000), NOW)
    return book


def wanted(name: str = "o-1", side: str = "buy", qty: str = "4") -> dict[str, Any]:
    return {
        "client_order_id": name,
        "symbol": "ACME",
        "side": side,
        "type": "market",
        "qty": qty,
        "limit_price": None,
        "time_in_force": "day",
    }


def traded(book: Book, side: str, qty: int, at: int) -> None:
    order = book.add_order("key", wanted(f"{side}-{qty}-{at}", side, str(qty)), NOW)
    book.fill(order, Decimal(qty), Decimal(at), NOW)


def test_a_price_depends_on_symbol_time_and_seed_alone() -> None:
    assert price("ACME", NOW, 1) == price("ACME", NOW, 1)
    assert len({price("ACME", NOW, 1), price("ACME", NOW, 2), price("ZENO", NOW, 1)}) == 3


def test_a_price_moves_and_stays_positive_and_near_its_middle() -> None:
    day = [price("ACME", NOW + 60 * minute, 1) for minute in range(1440)]
    assert len(set(day)) > 100
    assert min(day) > 0
    assert max(day) / min(day) < Decimal("1.3")


def test_the_broker_trades_at_the_prices_of_the_market_with_its_seed() -> None:
    (candle,) = Market(7).candles("ACME-USD", NOW, 1)
    steps = [price("ACME", candle["at"] + second, 7) for second in range(0, CANDLE_S + 1, 60)]
    assert (steps[0], steps[-1]) == tuple(Decimal(candle[name]).quantize(CENT) for name in ("open", "close"))
    assert Decimal(candle["low"]) - CENT <= min(steps) <= max(steps) <= Decimal(candle["high"]) + CENT
    assert price("ACME/USD", NOW, 7) == price("ACME", NOW, 7)


def test_a_chance_is_even() -> None:
    hits = sum(chance(1, "late", number) < 0.3 for number in range(10_000))
    assert 2_850 < hits < 3_150


def test_an_id_is_kept_once_and_every_attempt_is_counted(book: Book) -> None:
    first = book.add_order("key", wanted(), NOW)
    with pytest.raises(DuplicateOrder):
        book.add_order("key", wanted(qty="9"), NOW)
    [kept] = book.all_orders()
    assert (kept["id"], kept["qty"], kept["attempts"]) == (first["id"], "4", 2)


def test_the_same_id_of_another_account_is_another_order(book: Book) -> None:
    book.create_account("other", "secret", Decimal(1000), NOW)
    assert book.add_order("key", wanted(), NOW)["id"] != book.add_order("other", wanted(), NOW)["id"]


def test_a_fill_moves_cash_and_position(book: Book) -> None:
    order = book.add_order("key", wanted(), NOW)
    book.fill(order, Decimal(3), Decimal(10), NOW + 1)
    order = book.order(order["id"])
    assert order is not None
    assert (order["status"], order["filled_qty"], order["paid"]) == ("partially_filled", "3", "30")
    book.fill(order, Decimal(1), Decimal(20), NOW + 2)
    order = book.order(order["id"])
    assert order is not None
    assert (order["status"], order["filled_qty"], order["paid"]) == ("filled", "4", "50")
    account = book.account("key")
    assert account is not None
    assert account["cash"] == "950"
    assert [(row["qty"], row["cost"]) for row in book.positions("key")] == [("4", "50")]


@pytest.mark.parametrize(
    ("trades", "qty", "cost"),
    [
        ([("buy", 2, 10), ("buy", 2, 20)], 4, 60),
        ([("buy", 4, 15), ("sell", 1, 99)], 3, 45),
        ([("buy", 2, 10), ("sell", 5, 20)], -3, -60),
        ([("sell", 4, 10), ("buy", 1, 5)], -3, -30),
    ],
    ids=["grows", "shrinks at its average", "turns short", "short shrinks"],
)
def test_the_cost_of_a_position(book: Book, trades: list[tuple[str, int, int]], qty: int, cost: int) -> None:
    for trade in trades:
        traded(book, *trade)
    [position] = book.positions("key")
    assert (Decimal(position["qty"]), Decimal(position["cost"])) == (qty, cost)


def test_an_ended_order_cannot_end_again(book: Book) -> None:
    order = book.add_order("key", wanted(), NOW)
    ended = book.end_order(order["id"], "canceled", NOW + 1)
    assert ended is not None
    assert ended["status"] == "canceled"
    assert book.end_order(order["id"], "expired", NOW + 2) is None
    assert book.orders("key", "open") == []


def test_the_book_never_holds_a_secret(book: Book) -> None:
    book.create_account("canary", "canary-secret", Decimal(1), NOW)
    assert "canary-secret" not in str(book.account("canary"))


def test_overlaps_counts_only_time_with_two_streams_of_one_key() -> None:
    def session(key_id: str, opened: float, closed: float | None) -> dict[str, Any]:
        return {"key_id": key_id, "opened_at": opened, "closed_at": closed}

    sessions = [
        session("kept", 0, 10),
        session("kept", 10, None),
        session("broken", 0, 10),
        session("broken", 7, 8),
        session("broken", 9, None),
        session("lost", 0, None),
        session("lost", 15, None),
    ]
    assert overlaps(sessions, now=20) == {"broken": timedelta(seconds=2), "lost": timedelta(seconds=5)}


def test_knobs_from_a_command_line() -> None:
    assert Faults.parse(["partial=0.5", "one_stream=false", "retry_after_s=9"]) == Faults(
        partial=0.5, one_stream=False, retry_after_s=9
    )


@pytest.mark.parametrize("word", ["partial", "partial=", "partial=x", "nope=1", "one_stream=1", "late=-1"])
def test_a_wrong_knob_on_a_command_line_is_named(word: str) -> None:
    with pytest.raises(ValueError, match=word.partition("=")[0]):
        Faults.parse([word])
