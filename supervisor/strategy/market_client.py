"""How steps 1 and 2 talk to the market: a few tries, then a clear error. Never half an answer."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import httpx

logging.getLogger("httpx").setLevel(logging.WARNING)  # one line per request says nothing here

TRIES = 6  # six seconds in all: also a market that is only just starting is met
PAUSE_S = 0.2


class MarketError(Exception):
    """The market gave no usable answer; this cycle decides nothing, the next one tries again."""


async def get(client: httpx.AsyncClient, path: str, **query: Any) -> Any:
    """The JSON at `path`. Throttling (429), server errors, garbage and timeouts are tried again."""
    last = ""
    for attempt in range(TRIES):
        pause = PAUSE_S * 2**attempt
        try:
            response = await client.get(path, params=query)
            if response.status_code == 200:
                return response.json()
            last = f"status {response.status_code}"
            if response.status_code == 429:
                pause = float(response.headers.get("Retry-After", pause))
            elif response.status_code < 500:
                raise MarketError(f"{path}: {last}: {response.text[:200]}")
        except (httpx.TransportError, ValueError) as failed:
            last = f"{type(failed).__name__}: {failed}"
        if attempt + 1 < TRIES:
            await asyncio.sleep(pause)
    raise MarketError(f"{path}: no usable answer in {TRIES} tries; the last was {last}")
