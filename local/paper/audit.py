"""What the broker's list of streams says about the promise of one worker per user."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any


@dataclass(frozen=True, slots=True)
class Shared:
    """A key had two streams from `began` to `ended` (seconds since 1970)."""

    key_id: str
    began: float
    ended: float


def overlaps(sessions: Iterable[Mapping[str, Any]], now: float) -> dict[str, timedelta]:
    """For each key that ever had two streams at once: for how long in total. Empty is the promise kept."""
    found: dict[str, timedelta] = {}
    for one in shared(sessions, now):
        found[one.key_id] = found.get(one.key_id, timedelta()) + timedelta(seconds=one.ended - one.began)
    return found


def shared(sessions: Iterable[Mapping[str, Any]], now: float) -> list[Shared]:
    """Every time a key had two streams at once.

    `sessions` as /audit/sessions gives them; one that is still open lasts until `now`.
    """
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for session in sessions:
        closed = session["closed_at"]
        spans[session["key_id"]].append((session["opened_at"], now if closed is None else closed))
    found: list[Shared] = []
    for key_id, of_key in spans.items():
        covered = float("-inf")
        for opened, closed in sorted(of_key):
            if min(closed, covered) > opened:
                found.append(Shared(key_id, opened, min(closed, covered)))
            covered = max(covered, closed)
    return found
