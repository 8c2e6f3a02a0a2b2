"""The market's HTTP face, with fault knobs.

    GET  /candles?pair=WETH-USDC&limit=96&until=<unix seconds>
    GET  /pools?pair=WETH-USDC&at=<unix seconds>
    GET  /faults          the knobs as they are
    PUT  /faults          {"slow_s": 0.5, "throttle": 0.1, "fail": 0.1, "garbage": 0.1}

The three shares are drawn per request from the seed and the number of the request: the same run of
requests meets the same faults.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from itertools import count
from typing import Annotated, Any

from fastapi import FastAPI, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from muster.clock import Clock
from supervisor.market.data import Market

Pair = Annotated[str, Query(pattern=r"^[A-Z0-9]{2,10}-[A-Z0-9]{2,10}$")]
Share = Annotated[float, Field(ge=0, le=1)]


class Faults(BaseModel):
    """What goes wrong, and how often (a share of the requests)."""

    model_config = ConfigDict(extra="forbid")

    slow_s: Annotated[float, Field(ge=0, le=60)] = 0.0  #: every answer takes this much longer
    throttle: Share = 0.0  #: 429, with Retry-After
    fail: Share = 0.0  #: 500
    garbage: Share = 0.0  #: 200, and half a JSON


def create_app(market: Market, faults: Faults, clock: Clock) -> FastAPI:
    """The market as an ASGI application."""
    app = FastAPI(title="Muster market", docs_url=None, redoc_url=None)
    knobs = {"now": faults}
    numbers = count()

    async def answer(compute: Callable[[], Any]) -> Any:
        now = knobs["now"]
        await asyncio.sleep(now.slow_s)
        luck = random.Random(f"{market.seed}/{next(numbers)}").random()  # noqa: S311 - reproducible on purpose
        if luck < now.throttle:
            return Response("slow down", 429, {"Retry-After": "0.1"})
        if luck < now.throttle + now.fail:
            return Response("something broke", 500)
        if luck < now.throttle + now.fail + now.garbage:
            return Response('[{"at": 17', 200, media_type="application/json")
        return compute()

    @app.get("/candles")
    async def candles(
        pair: Pair, limit: Annotated[int, Query(ge=1, le=1000)] = 96, until: float | None = None
    ) -> Any:
        return await answer(lambda: market.candles(pair, clock.now() if until is None else until, limit))

    @app.get("/pools")
    async def pools(pair: Pair, at: float | None = None) -> Any:
        return await answer(lambda: market.pools(pair, clock.now() if at is None else at))

    @app.get("/faults")
    async def read_faults() -> Faults:
        return knobs["now"]

    @app.put("/faults")
    async def set_faults(wanted: Faults) -> Faults:
        knobs["now"] = wanted
        return wanted

    return app
