"""The market's figures, computed from (seed, pair, time) alone: any process, any order, the same answer.

A price is a sum of slow waves and a small noise, so no path has to be stored or replayed to know the
price of any moment. Stable pairs (both sides a dollar) move a thousandth of what others do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

CANDLE_S = 900
_STABLE = {"USDC", "USDT", "DAI", "USDE"}
_FEES = (0.0001, 0.0005, 0.003, 0.01)


@dataclass(frozen=True, slots=True)
class Market:
    """One seeded market."""

    seed: int = 1

    def price(self, pair: str, at: float) -> float:
        """The price of a moment: from its candle's open to its close in a straight line."""
        index, gone = divmod(at, CANDLE_S)
        start, close = (_price(self, pair, int(index) + step) for step in (0, 1))
        return start + (close - start) * gone / CANDLE_S

    def candles(self, pair: str, until: float, limit: int) -> list[dict[str, float]]:
        """The last `limit` whole candles before `until`, oldest first."""
        last = int(until // CANDLE_S)
        return [self._candle(pair, index) for index in range(last - limit, last)]

    def pools(self, pair: str, at: float) -> list[dict[str, float | str]]:
        """Four pools, one per fee tier, whose volume and liquidity drift through the day."""
        index = int(at // CANDLE_S)
        pools: list[dict[str, float | str]] = []
        for fee in _FEES:
            name = f"{pair}-{round(fee * 10_000)}"
            draw = self.draw(name)
            liquidity = 10 ** draw.uniform(5.5, 7.5) * (1 + 0.2 * self.wave(name, index))
            turnover = draw.uniform(0.02, 0.6) * (1 + 0.5 * self.wave(f"{name}/volume", index))
            pools.append({"id": name, "fee": fee, "liquidity": liquidity, "volume_24h": liquidity * turnover})
        return pools

    def _candle(self, pair: str, index: int) -> dict[str, float]:
        start, close = _price(self, pair, index), _price(self, pair, index + 1)
        wick = self.draw(f"{pair}/{index}").uniform(0, 0.5, size=2) * abs(close - start)
        return {
            "at": index * CANDLE_S,
            "open": start,
            "high": max(start, close) + wick[0],
            "low": min(start, close) - wick[1] * 0.5,
            "close": close,
            "volume": float(self.draw(f"{pair}/{index}/volume").lognormal(10, 1)),
        }

    def wave(self, name: str, index: int) -> float:
        """Between -1 and 1: three waves of hours, a day and a week, each with its own phase."""
        phases = self.draw(f"{name}/phases").uniform(0, 2 * np.pi, size=3)
        periods = np.array([17.0, 96.0, 672.0])
        return float(np.mean(np.sin(2 * np.pi * index / periods + phases)))

    def draw(self, name: str) -> np.random.Generator:
        """The dice of one name: always the same ones."""
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return np.random.default_rng(int.from_bytes(digest[:8], "big"))


@lru_cache(maxsize=4096)
def _price(market: Market, pair: str, index: int) -> float:
    """Where a candle opens and the one before it closes. Kept, because a broker asks many times a second."""
    stable = set(pair.split("-")) <= _STABLE
    base = 1.0 if stable else 10 ** market.draw(pair).uniform(1, 4)
    noise = float(market.draw(f"{pair}/{index}/noise").normal(0, 0.002))
    return float(base * np.exp((0.001 if stable else 1.0) * (0.1 * market.wave(pair, index) + noise)))
