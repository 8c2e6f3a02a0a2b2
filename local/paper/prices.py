"""Prices out of nothing but a symbol, a time and a seed: every process that asks gets the same answer."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal
from functools import cache

CENT = Decimal("0.01")

#: Length in seconds and height of the waves a price is made of: a day's swing down to a minute's noise.
_WAVES = ((86_400.0, 0.05), (3_600.0, 0.01), (300.0, 0.004), (60.0, 0.001))


def chance(*words: object) -> float:
    """A number in [0, 1) that depends on the words alone."""
    digest = hashlib.blake2b("|".join(map(str, words)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@cache
def _shape(symbol: str, seed: int) -> tuple[float, tuple[float, ...]]:
    """The middle of a symbol's price (10 to 500) and where each of its waves starts."""
    middle = 10 * 50 ** chance(seed, symbol, "middle")
    return middle, tuple(chance(seed, symbol, length) for length, _ in _WAVES)


def price(symbol: str, at: float, seed: int) -> Decimal:
    """The price of one share at `at` (seconds since 1970), in cents."""
    middle, starts = _shape(symbol, seed)
    moved = 1.0
    for (length, height), start in zip(_WAVES, starts, strict=True):
        moved += height * math.sin(2 * math.pi * (at / length + start))
    return Decimal(middle * moved).quantize(CENT)
