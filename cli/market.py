"""`muster market`: candles and liquidity pools by HTTP, seeded, with fault knobs."""

from __future__ import annotations

from typing import Annotated

import typer
import uvicorn

from muster.clock import SystemClock
from muster.scrub import guard
from supervisor.market.data import Market
from supervisor.market.server import Faults, create_app
from supervisor.timings import MARKET_PORT


def market(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = MARKET_PORT,
    seed: Annotated[int, typer.Option(help="The same seed gives the same market.")] = 1,
    slow: Annotated[float, typer.Option(min=0, max=60, help="Seconds every answer takes longer.")] = 0.0,
    throttle: Annotated[float, typer.Option(min=0, max=1, help="Share of answers that are 429.")] = 0.0,
    fail: Annotated[float, typer.Option(min=0, max=1, help="Share of answers that are 500.")] = 0.0,
    garbage: Annotated[float, typer.Option(min=0, max=1, help="Share that are half a JSON.")] = 0.0,
) -> None:
    """Serve a market for strategies to work on. The knobs can be turned later by PUT /faults.

    Example: muster market --port 3002 --seed 7
    """
    guard()
    faults = Faults(slow_s=slow, throttle=throttle, fail=fail, garbage=garbage)
    uvicorn.run(
        create_app(Market(seed), faults, SystemClock()), host="127.0.0.1", port=port, log_level="warning"
    )


if __name__ == "__main__":
    typer.run(market)
