"""What the broker's list of streams says about the promise of one worker per user."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any


def overlaps(sessions: Iterable[Mapping[str, Any]], now: float) -> dict[str, timedelta]:
    """For each key that ever had two streams at once: for how long in total. Empty is the promise kept.

    `sessions` as /audit/sessions gives them; one that is still open lasts until `now`.
    """
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for session in sessions:
        closed = session["closed_at"]
        spans[session["key_id"]].append((session["opened_at"], now if closed is None else closed))
    found: dict[str, timedelta] = {}
    for key_id, of_key in spans.items():
        both = 0.0
        covered = float("-inf")
        for opened, closed in sorted(of_key):
            both += max(0.0, min(closed, covered) - opened)
            covered = max(covered, closed)
        if both > 0:
            found[key_id] = timedelta(seconds=both)
    return found
