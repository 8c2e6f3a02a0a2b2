"""The three pictures of a study, as SVG for the page and PNG for everything else."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from sim.study import figures as f
from sim.study.policies import POLICIES
from sim.study.report import GOOD_P99_S, Run


def draw(run: Run, cells: int, folder: Path) -> list[Path]:
    """Write the pictures of a study, those of one day at `cells` cells; their files."""
    folder.mkdir(parents=True, exist_ok=True)
    # Without a date and with named ids, the same study gives the same bytes.
    mpl.rcParams["svg.hashsalt"] = "muster"
    mpl.rcParams["font.size"] = 9
    files = []
    for name, figure in (
        ("scale-latency", _latency(run)),
        ("scale-open", _open(run, cells)),
        ("scale-quotas", _quotas(run)),
    ):
        for ending in ("svg", "png"):
            path = folder / f"{name}.{ending}"
            figure.savefig(path, dpi=110, metadata={"Date": None} if ending == "svg" else {"Software": None})
            files.append(path)
        plt.close(figure)
    return files


def _latency(run: Run) -> Figure:
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for policy in POLICIES:
        rows = [row for row in run.study.rows if row.policy == policy]
        axes.plot([row.cells for row in rows], [row.p99_s for row in rows], marker="o", ms=3, label=policy)
    axes.axhline(GOOD_P99_S, color="grey", lw=0.8, ls="--")
    axes.set(xscale="log", yscale="log", xlabel="cells", ylabel="start latency p99, s")
    ticks = sorted({row.cells for row in run.study.rows})
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False)
    axes.set_title("99 of 100 starts are ready within")
    return figure


def _open(run: Run, cells: int) -> Figure:
    figure, (above, below) = plt.subplots(2, 1, figsize=(7, 4.6), sharex=True, layout="constrained")
    start, end = int(f.OPEN_AT.value) - 1800, int(f.OPEN_AT.value) + 2700
    minutes = [(second - f.OPEN_AT.value) / 60 for second in range(start, end)]
    above.plot(minutes, run.days[cells].arrivals[start:end], lw=0.5, color="grey", label="starts of a cell")
    above.axhline(f.MUTATE_RATE.value, color="black", lw=0.8, ls="--", label="RunTask and StopTask quota")
    above.set(ylabel="per second")
    above.legend(frameon=False)
    for policy in POLICIES:
        below.plot(minutes, run.courses[policy, cells].pool[start:end] + 1, lw=1, label=policy)
    below.set(yscale="log", ylabel="pool workers + 1", xlabel="minutes from the open")
    below.legend(frameon=False, ncols=3)
    above.set_title(f"The open in one of {cells} cells")
    return figure


def _quotas(run: Run) -> Figure:
    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    rows = [row for row in run.study.rows if row.policy == "calendar"]
    for name in rows[0].quotas:
        axes.plot(
            [row.cells for row in rows], [row.quotas[name] for row in rows], marker="o", ms=3, label=name
        )
    axes.axhline(1.0, color="grey", lw=0.8, ls="--")
    axes.set(xscale="log", xlabel="cells", ylabel="share of the quota")
    ticks = [row.cells for row in rows]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.legend(frameon=False)
    axes.set_title("The busiest minute of a cell, calendar policy")
    return figure
