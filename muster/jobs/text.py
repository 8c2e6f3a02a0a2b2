"""How values become text in the stores: JSON without blanks, read back without looking for any.

`json.loads` and `json.dumps` spend most of a small value's time on choosing options; a job has at least one
value each way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from json.decoder import JSONDecoder
from typing import Any

encode: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode
_scan: Callable[[str, int], tuple[Any, int]] = JSONDecoder().scan_once  # type: ignore[attr-defined]


def decode(text: str) -> Any:
    """The value of a text that `encode` wrote."""
    return _scan(text, 0)[0]
