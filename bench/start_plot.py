"""A bar chart on a logarithmic scale, as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

_ROW, _LEFT, _WIDTH = 24, 170, 520


def bars(milliseconds: Mapping[str, float]) -> str:
    """One bar per name, shortest first; ten times as long is one step of the scale further."""
    rows = sorted(milliseconds.items(), key=lambda row: row[1])
    low = 10 ** math.floor(math.log10(rows[0][1]))
    span = math.log10(rows[-1][1] / low) or 1.0
    height = _ROW * len(rows) + 40
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{height}"'
        ' font-family="sans-serif" font-size="12">',
        '<text x="8" y="18">from start command to ready, p50 (ms, logarithmic)</text>',
    ]
    for number, (name, value) in enumerate(rows):
        y = 30 + number * _ROW
        length = max(2.0, _WIDTH * math.log10(value / low) / span)
        colour = "#2a7f62" if name.startswith("muster") else "#999999"
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{length:.1f}" height="{_ROW - 8}" fill="{colour}"/>',
            f'<text x="{_LEFT + length + 6:.1f}" y="{y + 13}">{value:.3g}</text>',
        ]
    return "\n".join([*lines, "</svg>\n"])
