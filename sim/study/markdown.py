"""A study as the text that the command prints and that docs/explanation/scale.md carries unchanged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sim.study.figures import all_figures
from sim.study.policies import POLICIES
from sim.study.report import Study


def text(study: Study) -> str:
    """Four tables: the answer, every fleet, the quotas under the calendar, the figures it all stands on."""
    return "\n\n".join([_answer(study), _fleets(study), _quotas(study), _figures()])


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], words: int = 1) -> str:
    """The first `words` columns are words, the others numbers."""
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _answer(study: Study) -> str:
    head = ("policy", "fewest cells", "what forbids fewer", "warm %", "p50 s", "p99 s", "USD a day")
    lines: list[Sequence[object]] = []
    for policy in POLICIES:
        if (cells := study.fewest[policy]) is None:
            lines.append((policy, "none tried", study.binds[policy], "", "", "", ""))
            continue
        row = study.row(policy, cells)
        times = _seconds(row.p50_s), _seconds(row.p99_s)
        lines.append((policy, cells, study.binds[policy], row.warm_percent, *times, f"{row.total_usd:,}"))
    told = f"{study.users:,} users, seed {study.seed}, at most {study.peak_running:,} sessions at once."
    best = f" Advised: {study.advised} cells." if study.advised else ""
    return f"{told}{best} Prices: {study.prices}.\n\n{_table(head, lines)}"


def _fleets(study: Study) -> str:
    head = ["policy", "cells", "warm %", "p50 s", "p99 s", "worst s", "out of patience", "pool peak"]
    head += ["instances peak", "stops wait s", "instances USD", "of it pool", "all USD a day"]
    rows = []
    for row in study.rows:
        counts = row.out_of_patience, row.pool_peak, row.instances_peak, row.stop_wait_s
        money = row.instances_usd, row.pool_usd, row.total_usd
        times = (_seconds(time) for time in (row.p50_s, row.p99_s, row.worst_s))
        rows.append((row.policy, row.cells, row.warm_percent, *times, *(f"{n:,}" for n in (*counts, *money))))
    return _table(head, rows)


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.0f}"


def _quotas(study: Study) -> str:
    rows = [row for row in study.rows if row.policy == "calendar"]
    names = list(rows[0].quotas)
    return _table(
        ("share of a cell's quota, calendar", *names),
        ((f"{row.cells} cells", *(f"{row.quotas[name]:.2f}" for name in names)) for row in rows),
    )


def _figures() -> str:
    lines = [
        (name.lower().replace("_", " "), f"{figure.value:g} {figure.unit}".strip(), figure.origin, figure.how)
        for name, figure in all_figures().items()
    ]
    return _table(("figure", "value", "origin", "how"), lines, words=4)
