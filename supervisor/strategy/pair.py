"""The strategy of one pair: the eight steps of a cycle, in their order."""

from __future__ import annotations

from typing import Any

import httpx

from supervisor.strategy.allocate import allocate
from supervisor.strategy.analyse import analyse
from supervisor.strategy.candles import fetch_candles
from supervisor.strategy.execute import execute, plan
from supervisor.strategy.model import Params
from supervisor.strategy.pools import fetch_pools
from supervisor.strategy.publish import publish
from supervisor.strategy.record import last_positions, record
from supervisor.strategy.sleep import sleep
from supervisor.timings import MARKET_PORT
from worker.cycle import Context, CycleWorker


class PairStrategy(CycleWorker):
    """Keeps a pair's capital in its best pools. The positions live in this process only."""

    _positions: dict[str, float] | None = None

    async def cycle(self, ctx: Context) -> dict[str, Any]:
        settings = dict(ctx.settings)
        market = settings.pop("market", f"http://127.0.0.1:{MARKET_PORT}")
        params = Params(**settings)
        if self._positions is None:
            self._positions = last_positions(ctx.db)
        async with httpx.AsyncClient(base_url=market, timeout=10) as client:
            ctx.progress("fetching candles")
            candles = await fetch_candles(client, ctx.key)
            ctx.progress("fetching pools")
            pools = await fetch_pools(client, ctx.key)
        ctx.progress("analysing")
        analysis = analyse(candles, pools)
        weights = allocate(analysis, self._positions, params)
        ctx.progress("executing")
        changes = plan(self._positions, weights, params.capital)
        execute(changes, self._positions, params.capital, ctx.require_lock)
        record(ctx.db, ctx.now(), analysis, self._positions, changes)
        return publish(ctx, analysis, self._positions, changes, params)

    async def pause(self, ctx: Context) -> None:
        await sleep(ctx)
