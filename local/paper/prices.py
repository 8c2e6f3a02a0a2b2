"""The paper broker trades at the prices of the seeded market: `muster market` of its seed tells the same."""

from __future__ import annotations

import hashlib
from decimal import Decimal

from supervisor.market.data import Market

CENT = Decimal("0.01")


def chance(*words: object) -> float:
    """A number in [0, 1) that depends on the words alone."""
    digest = hashlib.blake2b("|".join(map(str, words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def pair_of(symbol: str) -> str:
    """What the market calls a symbol of the broker: AAPL is AAPL-USD, BTC/USD is BTC-USD."""
    return symbol.replace("/", "-") if "/" in symbol else f"{symbol}-USD"


def price(symbol: str, at: float, seed: int) -> Decimal:
    """The price of one share at `at` (seconds since 1970), in cents."""
    return Decimal(Market(seed).price(pair_of(symbol), at)).quantize(CENT)
