"""What happens to one cell in a day, second by second: who comes, who goes, what breaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.study import figures as f

DAY = 86_400
Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Day:
    """Counts per second. The day is a ring: who stays over midnight is there in its first hours."""

    users: int
    arrivals: Series
    stops: Series
    repairs: Series
    running: Series

    @property
    def demand(self) -> Series:
        """Starts of any cause: a user's and the repair of what broke."""
        return self.arrivals + self.repairs


def expected_arrivals(users: float) -> Series:
    """Starts per second that a calendar can know: a gentle wave over the day, and the open."""
    seconds = np.arange(DAY, dtype=np.float64)
    wave = 1.0 - 0.8 * np.cos(2 * np.pi * (seconds - 2 * 3600) / DAY)
    after_open = seconds - f.OPEN_AT.value
    spike = np.where(after_open >= 0, np.exp(-np.maximum(after_open, 0) / f.OPEN_MEAN.value), 0.0)
    starts = users * f.SESSIONS_PER_USER.value
    share = f.OPEN_SHARE.value
    rate: Series = starts * ((1 - share) * wave / wave.sum() + share * spike / spike.sum())
    return rate


def day_of(users: int, random: np.random.Generator) -> Day:
    arrivals = random.poisson(expected_arrivals(users))
    came = np.repeat(np.arange(DAY), arrivals)
    length = np.exp(random.normal(np.log(f.SESSION_MEDIAN.value), f.SESSION_SIGMA.value, came.size))
    left = came + np.minimum(length, f.SESSION_MOST.value).astype(np.int64)
    stops = np.bincount(left % DAY, minlength=DAY)
    overnight = int((left >= DAY).sum())
    running = overnight + np.cumsum(arrivals - stops)
    hosts = running / f.PER_INSTANCE.value
    crashes = random.poisson(running / (f.CRASH_EVERY.value * 3600))
    lost = random.poisson(hosts / (f.HOST_LOSS_EVERY.value * 3600)) * f.PER_INSTANCE.value
    return Day(
        users,
        arrivals.astype(np.float64),
        stops.astype(np.float64),
        crashes + lost,
        running.astype(np.float64),
    )
