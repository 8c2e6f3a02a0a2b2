"""The API against its own description: whatever is sent, no answer is a server error, and every answer is as
`/openapi.json` says. Valkey is real; the queues are moto's."""

from __future__ import annotations

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from moto import mock_aws
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.fleet import Fleet
from api.orders import OrderDesk
from api.routes import jobs, orders
from muster.jobs import connect
from muster.store import Store
from tests.api_stand import BEARER, app_of, begin, run_worker, settings_with_queues, sqs_client

#: Of each operation: well-formed ones and broken ones.
EXAMPLES = 20
CHECKS = (
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
)  # fmt: skip


@pytest.fixture(scope="module")
def app(valkey_server):
    store = Store(valkey_server.client())
    store.client.flushall()
    run_worker(store, begin(store, "0"))
    with mock_aws():
        sqs = sqs_client()
        fleet = Fleet(store, sqs, settings_with_queues(sqs))

        async def brief(idle_s):
            yield None

        fleet.events = brief  # the real one never ends
        work = connect("memory://")
        work.work.pool("0").push(1)
        yield app_of(fleet, orders.router(OrderDesk(store)), jobs.router(work, lambda *_: None))
    store.client.close()


def test_every_answer_is_as_described(app):
    described = schemathesis.openapi.from_asgi("/openapi.json", app, headers=BEARER)
    operations = [found.ok() for found in described.get_all_operations()]
    assert len(operations) > 30
    seen: Counter[int] = Counter()
    for operation in operations:

        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy() | operation.as_strategy(generation_mode=GenerationMode.NEGATIVE))
        def ask(case):
            seen[case.call_and_validate(headers=BEARER, checks=CHECKS).status_code] += 1

        ask()
    # Both kinds got through to where they were meant to.
    assert {200, 202, 404, 422} <= set(seen), seen
    assert seen[403] == seen[429] == 0, seen
