"""Step 3: analyse the market and score the pools."""

from __future__ import annotations

import numpy as np
import polars as pl

from supervisor.strategy.model import Analysis, Pool, Regime, Score

CANDLES_PER_YEAR = 365 * 24 * 4
#: Yearly volatility that separates the regimes.
CALM_BELOW = 0.15
WILD_ABOVE = 1.5


def analyse(candles: pl.DataFrame, pools: list[Pool]) -> Analysis:
    """Volatility, trend and regime from the candles; fees against loss for every pool, best first."""
    closes = candles["close"].to_numpy()
    returns = np.diff(np.log(closes))
    volatility = float(np.std(returns) * np.sqrt(CANDLES_PER_YEAR))
    trend = float(np.log(closes[-1] / closes[0]))
    # A position in both coins loses one eighth of the variance against holding them.
    loss_apr = volatility**2 / 8
    scores = [
        Score(
            pool.id,
            fee_apr := pool.volume_24h * pool.fee * 365 / pool.liquidity,
            loss_apr,
            fee_apr - loss_apr,
        )
        for pool in pools
    ]
    return Analysis(
        price=float(closes[-1]),
        regime=_regime(volatility),
        forces={"volatility": volatility, "trend": trend},
        scores=tuple(sorted(scores, key=lambda score: (-score.net_apr, score.pool))),
    )


def _regime(volatility: float) -> Regime:
    if volatility < CALM_BELOW:
        return Regime.CALM
    return Regime.WILD if volatility > WILD_ABOVE else Regime.NORMAL
