"""The models of the broker port: what a session may believe, and what must never be shown."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from muster.brokers.backoff import FIRST, MOST, Backoff
from muster.brokers.port import BadCredentials, Credentials, Order, OrderStatus, OrderType, Side
from muster.clock import FakeClock

AT = datetime(2026, 1, 2, tzinfo=UTC)
KNOWN = Order(
    "o-1",
    "b-1",
    "ACME",
    Side.BUY,
    OrderType.MARKET,
    Decimal(3),
    Decimal(1),
    None,
    OrderStatus.PARTIAL,
    AT,
    AT,
)


def test_a_later_time_decides_only_when_nothing_else_does() -> None:
    assert replace(KNOWN, updated_at=AT + timedelta(seconds=1)).newer_than(KNOWN)
    assert not replace(KNOWN, updated_at=AT + timedelta(hours=1), filled_qty=Decimal(0)).newer_than(KNOWN)
    assert not KNOWN.newer_than(KNOWN)


def test_every_order_of_arrival_ends_in_the_same_truth() -> None:
    told = [
        replace(KNOWN, status=OrderStatus.ACCEPTED, filled_qty=Decimal(0)),
        replace(KNOWN, updated_at=AT + timedelta(seconds=1)),
        replace(KNOWN, updated_at=AT + timedelta(seconds=2), filled_qty=Decimal(2)),
        replace(KNOWN, updated_at=AT - timedelta(hours=1), filled_qty=Decimal(3), status=OrderStatus.FILLED),
    ]
    for arrival in itertools.permutations(told):
        known = arrival[0]
        for order in arrival[1:]:
            known = order if order.newer_than(known) else known
        assert known.status is OrderStatus.FILLED


def test_only_working_orders_are_not_final() -> None:
    assert {status for status in OrderStatus if not status.final} == {
        OrderStatus.ACCEPTED,
        OrderStatus.PARTIAL,
    }


def test_credentials_are_read_and_never_shown() -> None:
    secret = {"broker": "paper", "key_id": "canary-id", "secret": "canary-secret", "url": "http://canary"}
    credentials = Credentials.parse(json.dumps(secret))
    assert (credentials.key_id, credentials.secret, credentials.url) == (
        "canary-id", "canary-secret", "http://canary",
    )  # fmt: skip
    assert "canary" not in f"{credentials} {credentials!r}"


@pytest.mark.parametrize(
    "text",
    [
        "canary",
        "[]",
        '"canary"',
        "{}",
        '{"broker": "paper", "key_id": "canary"}',
        '{"broker": "paper", "key_id": "canary", "secret": ""}',
        '{"broker": "paper", "key_id": 1, "secret": "canary"}',
        '{"broker": "paper", "key_id": "canary", "secret": "canary", "options": []}',
        '{"broker": "paper", "key_id": "canary", "secret": "canary", "url": 1}',
    ],
)
def test_credentials_that_cannot_be_read_are_not_quoted(text: str) -> None:
    with pytest.raises(BadCredentials) as bad:
        Credentials.parse(text)
    assert "canary" not in str(bad.value)
    assert bad.value.__cause__ is None
    assert bad.value.__context__ is None


def test_pauses_grow_to_the_most_and_start_again_after_a_success() -> None:
    clock = FakeClock()
    backoff = Backoff(clock)
    pauses = [backoff.failed() for _ in range(12)]
    assert FIRST / 2 <= pauses[0] <= FIRST
    assert MOST / 2 <= pauses[-1] <= MOST
    backoff.succeeded()
    assert backoff.left() == timedelta()
    assert backoff.failed() <= FIRST


def test_a_pause_is_as_long_as_the_broker_asks() -> None:
    assert Backoff(FakeClock()).failed(timedelta(minutes=2)) == timedelta(minutes=2)


def test_waiting_ends_at_the_limit_or_when_the_pause_is_over() -> None:
    clock = FakeClock()
    backoff = Backoff(clock)
    backoff.failed(timedelta(seconds=10))
    assert backoff.wait(timedelta(seconds=4)) == timedelta(seconds=6)
    before = clock.monotonic()
    assert backoff.wait(timedelta(seconds=60)) == timedelta()
    assert clock.monotonic() - before == 6
