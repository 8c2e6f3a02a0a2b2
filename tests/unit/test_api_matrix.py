"""Who may call what: every route of the application, every kind of caller, one table."""

from __future__ import annotations

import time

import pytest
from fastapi.routing import APIRoute, iter_route_contexts
from fastapi.testclient import TestClient
from moto import mock_aws

from api.auth import Role
from api.fleet import Fleet
from api.orders import OrderDesk
from api.routes import jobs, orders
from api.routes.page import FILES
from muster import keys
from muster.jobs import connect
from muster.store import Store
from tests.api_stand import app_of, bearer, begin, run_worker, settings_with_queues, sqs_client

#: Whose a route is: open, anybody's with a good token, one user's, the fleet's.
TABLE = {
    **{("GET", path): "open" for path in FILES},
    ("GET", "/healthz"): "open",
    ("GET", "/readyz"): "open",
    ("GET", "/openapi.json"): "anybody",
    ("GET", "/v1/me"): "anybody",
    ("GET", "/v1/events"): "anybody",
    ("GET", "/v1/workers/{user_id}"): "user",
    ("GET", "/v1/workers/{user_id}/explain"): "user",
    ("GET", "/v1/workers/{user_id}/logs"): "user",
    ("GET", "/v1/workers/{user_id}/timeline"): "user",
    ("POST", "/v1/workers/{user_id}/{action}"): "user",
    ("POST", "/v1/users/{user_id}/orders"): "user",
    ("GET", "/v1/users/{user_id}/orders"): "user",
    ("GET", "/v1/users/{user_id}/orders/{order_id}"): "user",
    ("DELETE", "/v1/users/{user_id}/orders/{order_id}"): "user",
    ("GET", "/v1/workers"): "fleet",
    ("GET", "/v1/starts"): "fleet",
    ("GET", "/v1/bulk"): "fleet",
    ("POST", "/v1/bulk/{action}"): "fleet",
    ("GET", "/v1/audit"): "fleet",
    ("GET", "/v1/pool"): "fleet",
    ("PUT", "/v1/pool"): "fleet",
    ("GET", "/v1/queues"): "fleet",
    ("GET", "/v1/queues/{queue}/dead-letters"): "fleet",
    ("DELETE", "/v1/queues/{queue}/dead-letters"): "fleet",
    ("POST", "/v1/queues/{queue}/dead-letters/redrive"): "fleet",
    ("GET", "/v1/queues/{queue}/dead-letters/{message_id}"): "fleet",
    ("POST", "/v1/queues/{queue}/dead-letters/{message_id}/redrive"): "fleet",
    ("GET", "/metrics"): "fleet",
    ("GET", "/v1/pools"): "fleet",
    ("GET", "/v1/pools/{pool}"): "fleet",
    ("POST", "/v1/pools/{pool}/jobs"): "fleet",
    ("GET", "/v1/pools/{pool}/jobs"): "fleet",
    ("GET", "/v1/pools/{pool}/jobs/{job_id}"): "fleet",
    ("GET", "/v1/pools/{pool}/jobs/{job_id}/events"): "fleet",
    ("POST", "/v1/pools/{pool}/jobs/{job_id}/cancel"): "fleet",
    ("POST", "/v1/pools/{pool}/jobs/{job_id}/resume"): "fleet",
    ("POST", "/v1/pools/{pool}/jobs/{job_id}/rerun"): "fleet",
    ("POST", "/v1/pools/{pool}/check"): "fleet",
    ("POST", "/v1/pools/{pool}/reap"): "fleet",
    ("POST", "/v1/pools/{pool}/redrive"): "fleet",
    ("PUT", "/v1/pools/{pool}/pin"): "fleet",
    ("PUT", "/v1/pools/{pool}/limit"): "fleet",
    ("GET", "/v1/pools/{pool}/workers"): "fleet",
}

CALLERS = {
    "none": {},
    "expired": bearer(Role.OPERATOR, exp=int(time.time()) - 60),
    "wrong audience": bearer(Role.OPERATOR, aud="somebody-else"),
    "other user": bearer(Role.USER, "u2"),
    "user": bearer(Role.USER, "u1"),
    "viewer": bearer(Role.VIEWER),
    "operator": bearer(Role.OPERATOR),
}
NOBODY = {"none", "expired", "wrong audience"}
READS = {
    "anybody": {"other user", "user", "viewer", "operator"},
    "user": {"user", "viewer", "operator"},
    "fleet": {"viewer", "operator"},
}
CHANGES = {"user": {"user", "operator"}, "fleet": {"operator"}}

NAMES = {
    "user_id": "u1", "action": "start", "order_id": "0" * 32, "queue": "worker-control.fifo",
    "message_id": "m-1", "pool": "p", "job_id": "1",
}  # fmt: skip


@pytest.fixture(scope="module")
def client(valkey_server):
    store = Store(valkey_server.client())
    with mock_aws():
        sqs = sqs_client()
        fleet = Fleet(store, sqs, settings_with_queues(sqs))

        async def brief(idle_s):
            yield None

        fleet.events = brief  # the real one never ends
        app = app_of(
            fleet, orders.router(OrderDesk(store)), jobs.router(connect("memory://"), lambda *_: None)
        )
        with TestClient(app, raise_server_exceptions=False) as made:
            made.app_, made.store = app, store
            yield made
    store.client.close()


def routes_of(app):
    return {
        (method, context.path)
        for context in iter_route_contexts(app.routes)
        for method in context.methods or ()
        if method != "HEAD"
    }


def test_every_route_has_a_row(client):
    assert routes_of(client.app_) == set(TABLE)


def test_every_route_says_what_it_is(client):
    routes = [route for route in client.app_.routes if isinstance(route, APIRoute)]
    assert len(routes) > 30
    assert [route.path for route in routes if not route.summary] == []


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(("method", "path"), TABLE, ids=lambda part: part)
def test_who_may_call_it(client, method, path, caller):
    client.store.client.flushall()
    whose = TABLE[method, path]
    allowed = {"GET": READS}.get(method, CHANGES).get(whose, set(CALLERS))
    answer = client.request(
        method,
        path.format(**NAMES),
        headers=CALLERS[caller],
        json=None if method in ("GET", "DELETE") else {},
    )
    if caller in allowed:
        assert answer.status_code not in (401, 403, 405, 429), answer.text
        assert answer.status_code < 500, answer.text
    else:
        assert answer.status_code == (401 if caller in NOBODY else 403), answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        # Nothing happened, so nothing is on record; and nobody learns whether u1 exists.
        assert client.store.client.exists(keys.AUDIT) == 0
        if caller == "other user" and whose == "user":
            stranger = path.format(**NAMES | {"user_id": "nobody-ever"})
            again = client.request(method, stranger, headers=CALLERS[caller])
            assert (again.status_code, again.json()) == (answer.status_code, answer.json())


@pytest.mark.parametrize("path", sorted(path for method, path in TABLE if method == "GET"))
def test_nothing_changes_by_get(client, path):
    """The whole store, before and after; only the caller's own limit is counted."""
    kept = client.store.client
    kept.flushall()
    run_worker(client.store, begin(client.store, "u1"))
    begin(client.store, "u2")
    before = everything(kept)
    assert client.get(path.format(**NAMES), headers=CALLERS["operator"]).status_code < 500
    assert before
    assert everything(kept) == before


def everything(kept):
    return {key: kept.dump(key) for key in kept.scan_iter() if not key.startswith("budget:")}
