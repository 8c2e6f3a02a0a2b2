"""The processor `backtest`: candles in; equity curve, statistics and a plot out.

    {"candles": {"close": [...], "high": [...], "low": [...]}    or "file": a CSV or Parquet with the columns,
     "strategy": "moving-average" (fast, slow) | "breakout" (window),
     "cash": 10000, "fee": 0.0005, "checkpoint_every": 500}      or "random": {"ticks": N, "seed": S}

Walks tick by tick, as a live strategy would: a signal of one close trades at the next one, so no tick
knows its own future. A checkpoint holds the whole state of the walk; a resumed run gives the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from muster.errors import BadCommand
from muster.jobs import WorkItem
from worker.jobs_context import Context

_TICKS_PER_YEAR = 252
_CURVE_POINTS = 500  # the result is a record, not an archive: the full curve is in the folder


@dataclass(slots=True)
class Walk:
    """Where the walk is: everything the next tick depends on."""

    tick: int = 0
    cash: float = 10_000.0
    units: float = 0.0
    want: int = 0  #: 1 to be in the market after the next close, 0 to be out
    trades: int = 0
    equity: list[float] = field(default_factory=list)


def run(job: WorkItem, ctx: Context) -> dict[str, Any]:
    spec = job.data
    candles = _candles(spec)
    signal = _signal(spec, candles)
    close = candles["close"].to_numpy()
    fee = float(spec.get("fee", 0.0005))
    every = int(spec.get("checkpoint_every", 500))
    walk = Walk(**ctx.resume_from) if ctx.resume_from else Walk(cash=float(spec.get("cash", 10_000.0)))
    resumed_at = walk.tick
    while walk.tick < len(close):
        _step(walk, float(close[walk.tick]), int(signal[walk.tick]), fee)
        if walk.tick % every == 0:
            fraction = walk.tick / len(close)
            ctx.checkpoint(asdict(walk), fraction, f"tick {walk.tick} of {len(close)}")
            ctx.check()
    return {
        **_statistics(np.array(walk.equity), walk.trades),
        "ticks": len(close),
        "resumed_at": resumed_at,
        **_files(ctx.folder, walk.equity, close),
    }


def _step(walk: Walk, price: float, signal: int, fee: float) -> None:
    """Trade what the LAST close wanted at this one, then listen to this one."""
    if walk.want and not walk.units:
        walk.units, walk.cash = walk.cash * (1 - fee) / price, 0.0
        walk.trades += 1
    elif walk.units and not walk.want:
        walk.cash, walk.units = walk.units * price * (1 - fee), 0.0
        walk.trades += 1
    walk.want = signal
    walk.equity.append(walk.cash + walk.units * price)
    walk.tick += 1


def _candles(spec: dict[str, Any]) -> pl.DataFrame:
    if "candles" in spec:
        frame = pl.DataFrame(spec["candles"])
    elif "file" in spec:
        path = Path(spec["file"])
        frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_csv(path)
    elif "random" in spec:
        noise = np.random.default_rng(int(spec["random"].get("seed", 0)))
        steps = noise.normal(0.0002, 0.01, int(spec["random"]["ticks"]))
        frame = pl.DataFrame({"close": 100.0 * np.exp(np.cumsum(steps))})
    else:
        raise BadCommand("a backtest needs candles, a file or random; see docs/how-to/write-a-processor.md")
    if "close" not in frame.columns or frame.height < 2:
        raise BadCommand("a backtest needs at least two candles with a column 'close'")
    for name in ("high", "low"):
        if name not in frame.columns:
            frame = frame.with_columns(pl.col("close").alias(name))
    return frame


def _signal(spec: dict[str, Any], candles: pl.DataFrame) -> np.ndarray:
    """1 where the strategy wants to be in the market after this close. Looks back only."""
    match spec.get("strategy", "moving-average"):
        case "moving-average":
            fast, slow = int(spec.get("fast", 10)), int(spec.get("slow", 30))
            if not 0 < fast < slow:
                raise BadCommand(f"moving-average needs 0 < fast < slow, not {fast} and {slow}")
            close = pl.col("close")
            wants = (close.rolling_mean(fast) > close.rolling_mean(slow)).fill_null(False)
            return candles.select(wants.cast(pl.Int8)).to_series().to_numpy()
        case "breakout":
            window = int(spec.get("window", 20))
            top = pl.col("high").rolling_max(window).shift(1)
            bottom = pl.col("low").rolling_min(window).shift(1)
            side = pl.when(pl.col("close") > top).then(1).when(pl.col("close") < bottom).then(0)
            return candles.select(side.forward_fill().fill_null(0).cast(pl.Int8)).to_series().to_numpy()
        case other:
            raise BadCommand(f"no strategy '{other}'; use moving-average or breakout")


def _statistics(equity: np.ndarray, trades: int) -> dict[str, Any]:
    returns = np.diff(equity) / equity[:-1]
    spread = float(returns.std())
    peaks = np.maximum.accumulate(equity)
    thin = max(1, math.ceil(len(equity) / _CURVE_POINTS))
    return {
        "final_equity": round(float(equity[-1]), 6),
        "total_return": round(float(equity[-1] / equity[0] - 1), 8),
        "sharpe": round(float(returns.mean()) / spread * math.sqrt(_TICKS_PER_YEAR), 6)
        if spread > 0
        else 0.0,
        "max_drawdown": round(float(((peaks - equity) / peaks).max()), 8),
        "trades": trades,
        "equity_curve": [round(float(value), 4) for value in equity[::thin]],
    }


def _files(folder: Path, equity: list[float], close: np.ndarray) -> dict[str, str]:
    # Imported here: plotting costs more memory and time than the walk itself.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.figure import Figure

    pl.DataFrame({"close": close, "equity": equity}).write_csv(folder / "equity.csv")
    figure = Figure(figsize=(9, 5), layout="constrained")
    top, bottom = figure.subplots(2, 1, sharex=True)
    top.plot(equity, linewidth=1.2)
    top.set_ylabel("equity")
    bottom.plot(close, linewidth=0.8, color="gray")
    bottom.set_ylabel("close")
    bottom.set_xlabel("tick")
    for kind in ("png", "svg"):
        figure.savefig(folder / f"equity.{kind}")
    return {"folder": str(folder), "plot": str(folder / "equity.png")}
