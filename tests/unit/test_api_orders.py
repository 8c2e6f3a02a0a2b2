"""Orders through the API: accepted once, shown in pages, cancelled, and refused with the next step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from moto import mock_aws

from api.fleet import Fleet
from api.orders import OrderDesk
from api.routes import orders
from muster import keys, steps
from muster.order_steps import INBOX_MOST, begin_order, report_order
from muster.store import Store
from tests.api_stand import BEARER, app_of, settings_with_queues, sqs_client
from tests.order_stand import record, told, wanted

PATH = "/v1/users/u1/orders"
ORDER = {"symbol": "AAPL", "side": "buy", "qty": "2.50"}


@pytest.fixture
def store(valkey: Any) -> Store:
    return Store(valkey)


@pytest.fixture
def api(store: Store) -> Iterator[TestClient]:
    with mock_aws():
        sqs = sqs_client()
        fleet = Fleet(store, sqs, settings_with_queues(sqs))
        app = app_of(fleet, orders.router(OrderDesk(store)))
        with TestClient(app, headers=BEARER, raise_server_exceptions=False) as client:
            yield client


def placed(api: TestClient, **more: Any) -> str:
    answer = api.post(PATH, json=ORDER | more)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["order_id"])


def sent(store: Store, order_id: str, status: str = "accepted", filled: str = "0") -> None:
    epoch = store.one(steps.read_user("u1")).epoch
    store.one(begin_order("u1", order_id, epoch))
    store.one(report_order("u1", told(order_id, status, filled, qty="2.5")))


def test_an_accepted_order_is_in_the_inbox_and_can_be_read(api: TestClient, store: Store) -> None:
    wanted(store)
    order_id = placed(api, type="limit", limit_price=101.50, time_in_force="gtc")
    assert store.client.xlen(keys.inbox("u1")) == 1
    seen = api.get(f"{PATH}/{order_id}").json()
    assert (seen["status"], seen["qty"], seen["limit_price"]) == ("queued", "2.5", "101.5")
    assert (seen["verified"], seen["final"], seen["average_price"]) == ("unverified", False, None)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"symbol": "aapl; drop"}, "symbol"),
        ({"symbol": ""}, "symbol"),
        ({"side": "hold"}, "side"),
        ({"qty": "0"}, "qty"),
        ({"qty": "-1"}, "qty"),
        ({"qty": "NaN"}, "qty"),
        ({"qty": "Infinity"}, "qty"),
        ({"qty": "1e300"}, "qty"),
        ({"qty": "0.0000000001"}, "qty"),
        ({"type": "limit"}, "limit_price"),
        ({"limit_price": "5"}, "limit_price"),
        ({"type": "stop"}, "type"),
        ({"time_in_force": "for ever"}, "time_in_force"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused_by_name(
    api: TestClient, store: Store, change: dict[str, Any], word: str
) -> None:
    wanted(store)
    answer = api.post(PATH, json=ORDER | change)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert word in answer.json()["detail"]
    assert store.client.exists(keys.inbox("u1")) == 0


def test_an_order_for_a_user_that_is_not_running_says_what_to_do(api: TestClient, store: Store) -> None:
    never = api.post(PATH, json=ORDER)
    assert never.status_code == 409
    assert "POST /v1/workers/u1/start" in never.json()["detail"]
    wanted(store)
    store.one(steps.begin_stop("u1", 2_000, "stop"))
    stopped = api.post(PATH, json=ORDER)
    assert (stopped.status_code, "is stopped" in stopped.json()["detail"]) == (409, True)


def test_an_order_for_a_worker_without_a_broker_session_says_what_to_do(
    api: TestClient, store: Store
) -> None:
    wanted(store, credentials_ref="")
    answer = api.post(PATH, json=ORDER)
    assert (answer.status_code, "credentials_ref" in answer.json()["detail"]) == (409, True)


def test_a_key_makes_a_repeat_the_same_order_and_another_order_a_conflict(
    api: TestClient, store: Store
) -> None:
    wanted(store)
    headers = {"Idempotency-Key": "k"}
    first = api.post(PATH, json=ORDER, headers=headers).json()
    again = api.post(PATH, json=ORDER | {"qty": 2.5}, headers=headers)
    assert (again.status_code, again.json()) == (202, {"order_id": first["order_id"], "repeated": True})
    other = api.post(PATH, json=ORDER | {"qty": "3"}, headers=headers)
    assert (other.status_code, first["order_id"] in other.json()["detail"]) == (409, True)
    assert store.client.xlen(keys.inbox("u1")) == 1


def test_a_worker_that_is_behind_is_given_time(api: TestClient, store: Store) -> None:
    wanted(store)
    for number in range(INBOX_MOST):
        store.client.xadd(keys.inbox("u1"), {"do": "place", "order_id": f"x{number}"})
    answer = api.post(PATH, json=ORDER)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1


def test_pages_show_every_order_once_newest_first(api: TestClient, store: Store) -> None:
    wanted(store)
    names = [placed(api) for _ in range(7)]
    for number, name in enumerate(names):  # several may have come in the same millisecond
        store.client.zadd("order:index:{u1}", {name: 10**13 + number})
    shown: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = api.get(PATH, params={"limit": 3, "cursor": cursor}).json()
        shown += [row["order_id"] for row in page["orders"]]
        cursor = page["next_cursor"]
    assert shown == names[::-1]
    assert api.get(PATH, params={"cursor": "nobody"}).status_code == 422
    assert api.get("/v1/users/u2/orders").json() == {"orders": [], "next_cursor": None}


def test_a_user_sees_only_its_own_orders(api: TestClient, store: Store) -> None:
    wanted(store)
    order_id = placed(api)
    assert api.get(f"/v1/users/u2/orders/{order_id}").status_code == 404
    assert api.delete(f"/v1/users/u2/orders/{order_id}").status_code == 404


def test_an_order_not_sent_yet_is_cancelled_at_once(api: TestClient, store: Store) -> None:
    wanted(store)
    order_id = placed(api)
    for _ in range(2):
        answer = api.delete(f"{PATH}/{order_id}")
        assert (answer.status_code, answer.json()["result"]) == (202, "cancelled")
    assert record(store, order_id).status == "cancelled"


def test_a_cancel_of_a_sent_order_is_asked_of_the_worker(api: TestClient, store: Store) -> None:
    wanted(store)
    order_id = placed(api)
    sent(store, order_id)
    assert api.delete(f"{PATH}/{order_id}").json() == {"order_id": order_id, "result": "asked"}
    assert record(store, order_id).cancel_asked_at is not None
    store.one(steps.begin_stop("u1", 2_000, "stop"))
    answer = api.delete(f"{PATH}/{order_id}")
    assert (answer.status_code, "POST /v1/workers/u1/start" in answer.json()["detail"]) == (409, True)


def test_a_filled_order_cannot_be_cancelled(api: TestClient, store: Store) -> None:
    wanted(store)
    order_id = placed(api)
    sent(store, order_id, "filled", "2.5")
    answer = api.delete(f"{PATH}/{order_id}")
    assert (answer.status_code, "filled already" in answer.json()["detail"]) == (409, True)


def test_nothing_is_answered_without_a_token(api: TestClient) -> None:
    for method, path in (("POST", PATH), ("GET", PATH), ("GET", f"{PATH}/o1"), ("DELETE", f"{PATH}/o1")):
        assert api.request(method, path, headers={"Authorization": "Bearer no"}).status_code == 401


@pytest.mark.parametrize("user", ["a%00b", "%C3%BC", "x" * 129])
def test_a_bad_user_id_is_refused(api: TestClient, user: str) -> None:
    assert api.post(f"/v1/users/{user}/orders", json=ORDER).status_code == 422
