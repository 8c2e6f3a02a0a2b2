"""The study itself: every policy at every number of cells, what each quota says, and what it costs a day."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import ceil
from typing import Any

import numpy as np

from muster import cost
from sim.study import figures as f
from sim.study.day import DAY, Day, Series, day_of
from sim.study.model import Course, call_waits, run, start_latency
from sim.study.policies import POLICIES, SHORT_CALENDAR

CELLS = (4, 5, 6, 8, 10, 12, 16, 24, 32)
#: A fleet is good enough when 99 of 100 starts need no longer than an unhindered cold start.
GOOD_P99_S = f.COLD_READY.value
_MONTHS_PER_DAY = 24 / cost.HOURS


@dataclass(frozen=True, slots=True)
class Row:
    """One policy at one number of cells. Counts are of the whole fleet unless they say cell, USD of a day."""

    policy: str
    cells: int
    warm_percent: float
    p50_s: float
    p99_s: float
    worst_s: float
    out_of_patience: int  #: starts that the real queue would have parked in its dead-letter queue meanwhile
    pool_peak: int
    instances_peak: int
    instances_peak_cell: int
    stop_wait_s: int
    quotas: dict[str, float]  #: share of each that the busiest minute of a cell takes; 1.0 is all of it
    tightest: str
    instances_usd: int  #: all worker instances, those under the pool included
    pool_usd: int  #: the pool's part of them
    rest_usd: int  #: API, Valkey, network, functions, queues, logs

    @property
    def total_usd(self) -> int:
        return self.instances_usd + self.rest_usd

    @property
    def good(self) -> bool:
        return self.p99_s <= GOOD_P99_S and max(self.quotas.values()) <= 1.0


@dataclass(frozen=True, slots=True)
class Study:
    """What `muster sim study --json` prints."""

    users: int
    seed: int
    prices: str
    peak_running: int
    rows: tuple[Row, ...]
    #: The fewest cells at which each policy is good enough (None: at none tried), and what forbids fewer.
    fewest: dict[str, int | None]
    binds: dict[str, str]
    #: The fewest cells that also forgive a calendar that was told too little.
    advised: int | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def row(self, policy: str, cells: int) -> Row:
        return next(row for row in self.rows if (row.policy, row.cells) == (policy, cells))


@dataclass(frozen=True, slots=True)
class Run:
    """A study with the seconds it was made of, for the plots: courses by (policy, cells)."""

    study: Study
    days: dict[int, Day]
    courses: dict[tuple[str, int], Course]


def study(users: int, seed: int, cells: Sequence[int] = CELLS) -> Run:
    """Same users, seed and cells: same numbers. Cells are alike: one of each size is run and multiplied."""
    prices = cost.Prices.load()
    days = {count: day_of(ceil(users / count), np.random.default_rng([seed, count])) for count in cells}
    names = [(policy, count) for count in cells for policy in POLICIES]
    whole = run(
        [days[count] for _, count in names], [POLICIES[policy](days[count]) for policy, count in names]
    )
    courses = {name: whole.column(index) for index, name in enumerate(names)}
    rows = [_row(policy, count, days[count], courses[policy, count], prices) for policy, count in names]
    fewest: dict[str, int | None] = {}
    binds = {}
    for policy in POLICIES:
        mine = [row for row in rows if row.policy == policy]
        fewest[policy] = least = min((row.cells for row in mine if row.good), default=None)
        short = [row for row in mine if least is None or row.cells < least]
        binds[policy] = _reason(short[-1]) if short else "nothing tried here"
    return Run(
        Study(
            users,
            seed,
            f"{prices.region}, {prices.date}",
            max(round(float(day.running.max()) * count) for count, day in days.items()),
            tuple(rows),
            fewest,
            binds,
            fewest[SHORT_CALENDAR],
        ),
        days,
        courses,
    )


def _reason(row: Row) -> str:
    if row.quotas[row.tightest] > 1.0:
        return row.tightest
    return "ecs-mutate"  # inside its rate on average, but starts waited for it


def _row(policy: str, cells: int, day: Day, course: Course, prices: cost.Prices) -> Row:
    hits, waits = int(course.warm.sum(dtype=np.float64)), call_waits(course)
    pool = course.pool.astype(np.float64)
    hosts = np.ceil((day.running + pool) / f.PER_INSTANCE.value)
    quotas = _quotas(day, course.calls.astype(np.float64), pool, float(hosts.max()))
    load = cost.Load(
        users=day.users, starts_per_user_per_day=f.SESSIONS_PER_USER.value, own_credentials=False
    )
    month = cost.monthly(cost.FOOTPRINTS["prod"], load, prices)
    rest = sum(usd for part, usd in month.items() if part != "worker instances") * _MONTHS_PER_DAY
    hourly = prices.hourly("r6i.large") / cost.HOURS
    p50, p99, worst = (round(start_latency(hits, waits, share), 3) for share in (0.5, 0.99, 1.0))
    return Row(
        policy=policy,
        cells=cells,
        warm_percent=round(100 * hits / float(day.demand.sum()), 1),
        p50_s=p50,
        p99_s=p99,
        worst_s=worst,
        out_of_patience=int((waits > f.START_PATIENCE.value).sum()) * cells,
        pool_peak=round(float(pool.max())) * cells,
        instances_peak=int(hosts.max()) * cells,
        instances_peak_cell=int(hosts.max()),
        stop_wait_s=round(float(course.stop_backlog.max()) / f.MUTATE_RATE.value),
        quotas=quotas,
        tightest=max(quotas, key=lambda name: quotas[name]),
        instances_usd=round(float(hosts.sum()) / 3600 * hourly * cells),
        pool_usd=round(float(pool.sum()) / f.PER_INSTANCE.value / 3600 * hourly * cells),
        rest_usd=round(rest * cells),
    )


def _quotas(day: Day, calls: Series, pool: Series, hosts: float) -> dict[str, float]:
    commands = day.arrivals + day.stops + day.repairs
    pages = (day.running + pool) / f.TASKS_PER_PAGE.value / f.SWEEP_EVERY.value
    shares = {
        "ecs-mutate": _busiest_minute(calls) / f.MUTATE_RATE.value,
        "ecs-read": float(pages.max()) / f.READ_RATE.value,
        "instances per cluster": hosts / f.INSTANCES_PER_CLUSTER.value,
        "sqs fifo calls": _busiest_minute(commands) / f.FIFO_CALLS.value,
        "worker_control runs": _busiest_minute(commands) * f.COMMAND_RUN.value / f.CONTROL_CONCURRENCY.value,
    }
    # A minute can hold its rate and one burst; more than all of the rate is not more than the quota.
    shares["ecs-mutate"] = min(shares["ecs-mutate"], 1.0)
    return {name: round(share, 2) for name, share in shares.items()}


def _busiest_minute(per_second: Series) -> float:
    return float(per_second.reshape(DAY // 60, 60).mean(axis=1).max())
