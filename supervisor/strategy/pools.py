"""Step 2: fetch pool snapshots."""

from __future__ import annotations

import httpx

from supervisor.strategy.market_client import MarketError, get
from supervisor.strategy.model import Pool


async def fetch_pools(client: httpx.AsyncClient, pair: str) -> list[Pool]:
    """The pools of a pair as they are now."""
    rows = await get(client, "/pools", pair=pair)
    try:
        pools = [
            Pool(str(row["id"]), float(row["liquidity"]), float(row["volume_24h"]), float(row["fee"]))
            for row in rows
        ]
    except (TypeError, KeyError, ValueError) as bad:
        raise MarketError(f"/pools: not a list of pools ({bad!r})") from bad
    if any(pool.liquidity <= 0 or pool.volume_24h < 0 or pool.fee < 0 for pool in pools):
        raise MarketError("/pools: a pool with impossible figures")
    return pools
