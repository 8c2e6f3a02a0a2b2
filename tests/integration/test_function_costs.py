"""What one invocation of worker_control may cost, counted on the wire of a real server."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from bench.functions import AWS_CALLS, POOL, ROUND_TRIPS, warm_costs
from lambdas import wiring
from local.valkey import EmbeddedValkey
from muster.blueprint import FUNCTIONS


@pytest.fixture(autouse=True)
def _own_wiring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wiring, "_wiring", None)


@pytest.mark.parametrize("channel", ["sqs", "valkey"])
@pytest.mark.parametrize("idle", [POOL, 0], ids=["warm", "cold"])
def test_a_start_costs_three_round_trips_and_one_call_and_ten_of_them_less_than_ten_times_that(
    valkey_server: EmbeddedValkey, valkey: Any, channel: str, idle: int
) -> None:
    trips, calls = warm_costs(valkey_server.url, channel, 1, idle)
    assert trips <= ROUND_TRIPS
    assert calls.total() <= AWS_CALLS
    valkey.flushall()
    ten_trips, ten_calls = warm_costs(valkey_server.url, channel, 10, idle)
    assert ten_trips <= ROUND_TRIPS  # all groups of a batch travel together
    assert ten_trips + ten_calls.total() < 10 * (trips + calls.total())
    # A claim for ten users is one message batch; RunTask starts one task a call, so a cold batch needs ten.
    assert ten_calls.total() <= (10 if idle == 0 else 1)


def test_no_handler_loads_what_a_cold_start_should_not_pay_for() -> None:
    code = "import sys\n" + "".join(f"import lambdas.{f.name}.handler\n" for f in FUNCTIONS)
    code += "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert not set(loaded.split()) & {"boto3", "pydantic", "sqlite3", "httpx", "websockets", "numpy"}
