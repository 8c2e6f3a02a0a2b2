"""How large the warm pool should be: what demand asks for, what the calendar knows, what the budget allows.

What is claimed while the pool cannot grow must already be there: the target is the quantile, at the wanted
hit rate, of the claims of one refill time at the recent rate; at least the floor. No look back can see a
market open coming, so the calendar's windows go on top. The cap bounds all of it: the budget shrinks the
pool, never the users who run.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, tzinfo
from statistics import NormalDist
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from muster import blueprint
from muster.errors import Refused

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_WINDOW = re.compile(
    r"(?P<first>[a-z]{3})(-(?P<last>[a-z]{3}))? (?P<begins>\d\d:[0-5]\d)-(?P<ends>\d\d:[0-5]\d)"
    r"( (?P<zone>[A-Za-z_]+(/[A-Za-z_+-]+)*))? (?P<size>\d{1,5})"
)


#: Above this mean Poisson's law is as good as normal, and its first term would underflow.
_MANY = 500


@dataclass(frozen=True, slots=True)
class Window:
    """On these days, from `begins` to `ends` (minutes of that zone's day), at least `size` workers wait."""

    days: frozenset[int]
    begins: int
    ends: int
    zone: tzinfo
    size: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """`mon-fri 09:10-09:45 America/New_York 180`; without a zone the times are UTC."""
        wrong = Refused(
            f"{text!r} is no window of the pool's calendar: write 'mon-fri 09:10-09:45 America/New_York 180'"
        )
        found = _WINDOW.fullmatch(" ".join(text.split()))
        if found is None or {found["first"], found["last"] or "mon"} - set(_DAYS):
            raise wrong
        first, last = _DAYS.index(found["first"]), _DAYS.index(found["last"] or found["first"])
        begins, ends = (_minutes(found[name]) for name in ("begins", "ends"))
        if not begins < ends <= 24 * 60 or first > last:
            raise wrong
        try:
            zone = ZoneInfo(found["zone"] or "UTC")
        except (ZoneInfoNotFoundError, ValueError) as unknown:
            raise Refused(
                f"there is no time zone {found['zone']!r}: use a name such as Europe/Dublin"
            ) from unknown
        return cls(frozenset(range(first, last + 1)), begins, ends, zone, int(found["size"]))

    def covers(self, now_ms: int) -> bool:
        here = datetime.fromtimestamp(now_ms / 1000, self.zone)
        return here.weekday() in self.days and self.begins <= here.hour * 60 + here.minute < self.ends


def _minutes(clock: str) -> int:
    hours, minutes = clock.split(":")
    return int(hours) * 60 + int(minutes)


def parse_windows(text: str) -> tuple[Window, ...]:
    """The windows of a calendar, separated by semicolons."""
    return tuple(Window.parse(part) for part in text.split(";") if part.strip())


def pool_target(
    demand_ms: Sequence[int],
    now_ms: int,
    *,
    floor: int,
    cap: int,
    adaptive: bool = True,
    windows: Sequence[Window] = (),
    refill: timedelta = blueprint.POOL_REFILL,
    hit_rate: float = blueprint.POOL_HIT_RATE,
) -> int:
    """The target for the times (ms) at which a warm worker was asked for."""
    wanted = [floor, *(window.size for window in windows if window.covers(now_ms))]
    if adaptive:
        wanted.append(_quantile(demand_ms, now_ms, refill, hit_rate))
    return min(cap, max(wanted))


def _quantile(demand_ms: Sequence[int], now_ms: int, refill: timedelta, hit_rate: float) -> int:
    """So many are claimed in one refill time, at most, with this probability, if the recent rate goes on.

    Claims of many users are as good as independent, so their number follows Poisson's law. Counting how the
    last refill times went instead would remember every rush for as long as it looks back.
    """
    since = now_ms - blueprint.POOL_DEMAND_MEMORY / timedelta(milliseconds=1)
    recent = sum(since < at <= now_ms for at in demand_ms)
    mean = recent * (refill / blueprint.POOL_DEMAND_MEMORY)
    if mean > _MANY:
        return math.ceil(mean + NormalDist().inv_cdf(hit_rate) * math.sqrt(mean))
    size, share = 0, math.exp(-mean)
    total = share
    while total < hit_rate:
        size += 1
        share *= mean / size
        total += share
    return size
