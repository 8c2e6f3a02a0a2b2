"""The picture of `muster pool what-if`: what each policy buys, and how large it kept the pool."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

from muster.pool_replay import Replay

_DAYS_SHOWN = 7


def draw(done: Sequence[Replay], usd: Sequence[float], path: Path) -> None:
    """Hit rate over dollars for all, and a week of the first one's pool."""
    mpl.rcParams["svg.hashsalt"] = "muster"
    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 6), layout="constrained")
    fixed = sorted(
        (spent, row.hit_rate) for row, spent in zip(done, usd, strict=True) if row.name != "adaptive"
    )
    above.plot([x for x, _ in fixed], [100 * y for _, y in fixed], marker="o", ms=4, label="fixed")
    for row, spent in zip(done, usd, strict=True):
        if row.name == "adaptive":
            above.plot([spent], [100 * row.hit_rate], marker="*", ms=13, ls="", color="C1", label="adaptive")
        else:
            above.annotate(row.name.removeprefix("fixed:"), (spent, 100 * row.hit_rate), fontsize=8)
    above.set_xscale("symlog", linthresh=1)
    above.set(xlabel="USD", ylabel="starts from the pool, %", title="What a pool buys")
    above.legend(frameon=False)
    first = done[0]
    began = first.course[0][0]
    week = [(at, size) for at, size in first.course if at - began <= _DAYS_SHOWN * 86_400_000]
    below.step(
        [datetime.fromtimestamp(at / 1000, UTC) for at, _ in week], [size for _, size in week], where="post"
    )
    below.set(ylabel="workers of the pool", title=f"The first week of {first.name}")
    below.tick_params(axis="x", rotation=30)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)
