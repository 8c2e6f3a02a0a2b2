"""The market over real HTTP: reproducible, and broken exactly as its knobs say. The strategy survives it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import httpx
import pytest
import uvicorn

from local.valkey import free_port
from muster.clock import FakeClock
from supervisor.market.data import Market
from supervisor.market.server import Faults, create_app
from supervisor.strategy.candles import fetch_candles
from supervisor.strategy.market_client import MarketError
from supervisor.strategy.pools import fetch_pools

NOW = 1_700_000_000.0


@pytest.fixture
def market() -> Iterator[httpx.Client]:
    app = create_app(Market(seed=7), Faults(), FakeClock(NOW))
    server = uvicorn.Server(uvicorn.Config(app, port=(port := free_port()), log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            deadline = time.monotonic() + 30
            while not server.started:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield client
    finally:
        server.should_exit = True
        thread.join()


def fetch(market: httpx.Client, step, pair: str = "WETH-USDC"):
    async def go():
        async with httpx.AsyncClient(base_url=market.base_url) as client:
            return await step(client, pair)

    return asyncio.run(go())


def test_the_same_seed_is_the_same_market_and_another_seed_another(market):
    served = market.get("/candles", params={"pair": "WETH-USDC"}).json()
    assert served == Market(seed=7).candles("WETH-USDC", NOW, 96)
    assert served != Market(seed=8).candles("WETH-USDC", NOW, 96)
    assert market.get("/pools", params={"pair": "WETH-USDC"}).json() == Market(seed=7).pools("WETH-USDC", NOW)


def test_candles_are_sound_and_join_up():
    rows = Market(seed=7).candles("WBTC-USDC", NOW, 500)
    for before, after in pairwise(rows):
        assert after["at"] - before["at"] == 900
        assert after["open"] == before["close"]
    assert all(0 < row["low"] <= min(row["open"], row["close"]) for row in rows)
    assert all(row["high"] >= max(row["open"], row["close"]) for row in rows)
    stable = [row["close"] for row in Market(seed=7).candles("USDC-USDT", NOW, 500)]
    assert max(stable) - min(stable) < 0.001


def test_a_bad_question_is_refused_and_not_tried_again(market):
    assert market.get("/candles", params={"pair": "nonsense"}).status_code == 422
    with pytest.raises(MarketError, match="status 422"):
        fetch(market, fetch_pools, pair="nonsense")


def test_the_faults_come_as_often_as_the_knobs_say(market):
    market.put("/faults", json={"throttle": 0.3, "fail": 0.3, "garbage": 0.2})

    def kind() -> str:
        response = market.get("/pools", params={"pair": "WETH-USDC"})
        return (
            "garbage"
            if response.status_code == 200 and response.text == '[{"at": 17'
            else str(response.status_code)
        )

    seen = Counter(kind() for _ in range(200))
    assert set(seen) == {"429", "500", "garbage", "200"}
    assert 40 <= seen["429"] <= 80
    assert 40 <= seen["500"] <= 80
    assert 20 <= seen["garbage"] <= 60


def test_a_slow_market_is_slow(market):
    market.put("/faults", json={"slow_s": 0.2})
    began = time.monotonic()
    market.get("/pools", params={"pair": "WETH-USDC"})
    assert time.monotonic() - began >= 0.2


def test_the_strategy_gets_through_a_market_that_fails_now_and_then(market):
    market.put("/faults", json={"throttle": 0.2, "fail": 0.2, "garbage": 0.1})
    assert fetch(market, fetch_candles).height == 96
    assert len(fetch(market, fetch_pools)) == 4


@pytest.mark.parametrize(
    ("knob", "words"), [("throttle", "status 429"), ("fail", "status 500"), ("garbage", "JSONDecodeError")]
)
def test_a_market_that_only_fails_is_a_clear_error(market, monkeypatch, knob, words):
    monkeypatch.setattr("supervisor.strategy.market_client.PAUSE_S", 0.01)
    market.put("/faults", json={knob: 1})
    with pytest.raises(MarketError, match=f"no usable answer in 6 tries; the last was {words}"):
        fetch(market, fetch_candles)


def test_a_knob_out_of_range_is_refused(market):
    assert market.put("/faults", json={"fail": 2}).status_code == 422
    assert market.get("/faults").json() == {"slow_s": 0, "throttle": 0, "fail": 0, "garbage": 0}
