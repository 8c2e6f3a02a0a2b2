"""What a pool policy would have done: claims of the past (or made up) replayed against it.

The pool as the manager runs it: a look every five minutes and when a claim takes it below half, at most
`MOST_LAUNCHES` launches a look, a worker that waits one refill time after its launch. Policies see what the
real manager sees, the claims of the last twenty minutes, and nothing of what comes.
"""

from __future__ import annotations

import csv
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from muster import blueprint
from muster.errors import Refused
from muster.pool_target import Window, pool_target
from muster.warm_pool import MOST_LAUNCHES

#: (times of recent claims in ms, now in ms) -> how many should wait
Policy = Callable[[Sequence[int], int], int]

_LOOK_MS = round((blueprint.FN_POOL_MANAGER.every or blueprint.POOL_REFILL) / timedelta(milliseconds=1))
_MEMORY_MS = round(blueprint.POOL_DEMAND_MEMORY / timedelta(milliseconds=1))
_HOUR_MS = 3_600_000


@dataclass(slots=True)
class Replay:
    """What became of the claims under one policy."""

    name: str
    claims: int = 0
    hits: int = 0
    worker_ms: float = 0.0  #: all the time that pool workers waited or booted
    days: float = 0.0
    course: list[tuple[int, int]] = field(default_factory=list)  #: (ms, workers of the pool) at every look

    @property
    def hit_rate(self) -> float:
        return self.hits / self.claims if self.claims else 1.0

    @property
    def worker_hours(self) -> float:
        return self.worker_ms / _HOUR_MS

    def start_s(self, share: float) -> float:
        """A quantile of the time to ready: a hit is a warm start, a miss a cold one."""
        quick = share <= self.hit_rate
        return (blueprint.AWS_WARM_READY if quick else blueprint.AWS_COLD_READY).total_seconds()


def fixed(size: int) -> Policy:
    return lambda demand, now_ms: size  # noqa: ARG005 - it looks at nothing


def adaptive(
    floor: int,
    cap: int,
    windows: Sequence[Window] = (),
    refill: timedelta = blueprint.POOL_REFILL,
    hit_rate: float = blueprint.POOL_HIT_RATE,
) -> Policy:
    """The policy that runs when `MUSTER_POOL_ADAPTIVE` is true."""

    def policy(demand: Sequence[int], now_ms: int) -> int:
        return pool_target(
            demand, now_ms, floor=floor, cap=cap, windows=windows, refill=refill, hit_rate=hit_rate
        )

    return policy


def replay(
    name: str, claims_ms: Sequence[int], policy: Policy, refill: timedelta = blueprint.POOL_REFILL
) -> Replay:
    """Run the claims, in the order of their times, against the policy. The pool starts filled."""
    done = Replay(name, len(claims_ms))
    if not claims_ms:
        return done
    refill_ms = round(refill / timedelta(milliseconds=1))
    now = began = claims_ms[0] - _LOOK_MS
    demand: deque[int] = deque()
    booting: deque[int] = deque()
    target = idle = policy((), now)
    next_look = now

    def pass_time(until: int) -> None:
        nonlocal now, idle
        while booting and booting[0] <= until:
            done.worker_ms += (idle + len(booting)) * (booting[0] - now)
            now = booting.popleft()
            idle += 1
        done.worker_ms += (idle + len(booting)) * (until - now)
        now = until

    def look() -> None:
        nonlocal target, idle
        while demand and demand[0] <= now - _MEMORY_MS:
            demand.popleft()
        target = policy(demand, now)
        idle = min(idle, max(0, target - len(booting)))
        missing = target - idle - len(booting)
        booting.extend([now + refill_ms] * max(0, min(missing, MOST_LAUNCHES)))
        done.course.append((now, idle + len(booting)))

    for at in claims_ms:
        while next_look <= at:
            pass_time(next_look)
            look()
            next_look += _LOOK_MS
        pass_time(at)
        demand.append(at)
        if idle:
            idle -= 1
            done.hits += 1
            if idle < target * blueprint.POOL_LOW_WATER <= idle + 1:
                look()
    done.days = (now - began) / _HOUR_MS / 24
    return done


#: The open that `synthetic_month` has, and what an operator who expects it would tell the pool: how many
#: come, from a little before (a refill is 50 launches every five minutes) until most are there.
SYNTHETIC_OPEN_USERS = 200
SYNTHETIC_WINDOW = f"mon-fri 13:10-13:40 {SYNTHETIC_OPEN_USERS}"


def synthetic_month(seed: int) -> list[int]:
    """Claims (ms) of 30 days: few at night, some by day, and on weekdays a rush at 13:30 UTC.

    Around 200 users come to the open, on a standard day give or take a fifth, most of them in five minutes.
    """
    chance = random.Random(seed)  # noqa: S311 - made-up users, no secrets
    start = datetime(2026, 11, 2, tzinfo=UTC)
    moments: list[float] = []
    for day in range(30):
        midnight = start + timedelta(days=day)
        weekday = midnight.weekday() < 5
        for hour in range(24):
            busy = 20.0 if weekday and 8 <= hour < 21 else 4.0
            at = chance.expovariate(busy)
            while at < 1:
                moments.append((midnight + timedelta(hours=hour + at)).timestamp())
                at += chance.expovariate(busy)
        if weekday:
            opens = (midnight + timedelta(hours=13, minutes=30)).timestamp()
            users = max(0, round(chance.gauss(SYNTHETIC_OPEN_USERS, SYNTHETIC_OPEN_USERS / 5)))
            moments += [opens + chance.expovariate(1 / 150) for _ in range(users)]
    return sorted(round(moment * 1000) for moment in moments)


def read_trace(path: Path) -> list[int]:
    """Claims (ms) from a CSV file with a column `at`: seconds since 1970, or a time as CloudWatch has it."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return sorted(_moments(csv.DictReader(file)))
    except OSError as missing:
        raise Refused(f"{path} cannot be read: give a CSV file with the columns at,user") from missing
    except (UnicodeDecodeError, csv.Error) as broken:
        raise Refused(f"{path} is not a CSV file ({broken})") from broken


def _moments(rows: Iterable[dict[str, str]]) -> Iterable[int]:
    for number, row in enumerate(rows, 2):
        text = (row.get("at") or "").strip()
        try:
            if text.replace(".", "", 1).isdecimal():
                moment = float(text)
            else:
                when = datetime.fromisoformat(text)
                moment = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        except ValueError as wrong:
            raise Refused(
                f"line {number}: at is {text[:40]!r}; write seconds since 1970 or 2026-11-02 13:30:00"
            ) from wrong
        yield round(moment * 1000)
