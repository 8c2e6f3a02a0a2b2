"""Step 1: fetch OHLC candles."""

from __future__ import annotations

import httpx
import polars as pl

from supervisor.strategy.market_client import MarketError, get

COLUMNS = ("at", "open", "high", "low", "close", "volume")


async def fetch_candles(client: httpx.AsyncClient, pair: str, limit: int = 96) -> pl.DataFrame:
    """The last `limit` candles of 15 minutes, oldest first. A day of them by default."""
    rows = await get(client, "/candles", pair=pair, limit=limit)
    try:
        frame = pl.DataFrame({name: [float(row[name]) for row in rows] for name in COLUMNS})
    except (TypeError, KeyError, ValueError) as bad:
        raise MarketError(f"/candles: not a list of candles ({bad!r})") from bad
    sound = frame.filter(
        (pl.col("low") > 0) & (pl.col("low") <= pl.col("close")) & (pl.col("close") <= pl.col("high"))
    )
    if frame.height < 2 or sound.height != frame.height:
        raise MarketError(
            f"/candles: {frame.height} candles, {sound.height} of them sound; at least 2 are needed"
        )
    return frame.sort("at")
