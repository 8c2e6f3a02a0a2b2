"""How large the warm pool should be, second by second. Each policy is one function of a cell's day."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from muster.budget import Priority
from sim.study import figures as f
from sim.study.day import Day, Series, expected_arrivals

Policy = Callable[[Day], Series]

#: Seconds from a claim to its replacement: notice it, ask, boot.
REFILL_S = 2.0 + f.COLD_READY.value
#: The claim rate is looked at over this long.
LOOK_BACK_S = 60
#: Standard normal quantile of the chosen hit rate, 99.9 %.
QUANTILE = 3.09
#: Before the open the pool fills with this share of the bucket; the rest is for users.
FILL_SHARE = 1.0 - Priority.REFILL.value / 2
#: The window ends when the spike is down to 5 %: three mean delays.
WINDOW_AFTER_S = round(3 * f.OPEN_MEAN.value)


def fixed(size: int) -> Policy:
    return lambda day: np.full(day.demand.size, float(size))


def adaptive(day: Day) -> Series:
    """The claim-rate quantile over the refill time, from what the last minute showed."""
    total = np.cumsum(np.concatenate([day.demand[-LOOK_BACK_S:], day.demand]))
    rate = (total[LOOK_BACK_S:] - total[:-LOOK_BACK_S]) / LOOK_BACK_S
    return _quantile(np.concatenate([rate[-1:], rate[:-1]]))


def calendar(day: Day, expects: float = 1.0) -> Series:
    """Adaptive, and before the open as many as the spike takes faster than the bucket gives them back.

    `expects` is the share of the true open that the calendar was told of.
    """
    refill = FILL_SHARE * f.MUTATE_RATE.value
    opens = int(f.OPEN_AT.value)
    expected = expects * expected_arrivals(day.users)
    ahead = np.cumsum(expected[opens : opens + WINDOW_AFTER_S] - refill)
    needed = max(0.0, float(ahead.max()))
    needed = np.ceil(needed + QUANTILE * np.sqrt(max(needed, 1.0)))
    lead = int(600 + needed / (refill - expected[opens - 1]) * 1.2) if refill > expected[opens - 1] else opens
    # From each second of the window: the most that the rest of the open still takes beyond the refill.
    worst_to_come = np.maximum.accumulate(ahead[::-1])[::-1]
    left = np.maximum(worst_to_come - np.concatenate([[0.0], ahead[:-1]]), 0.0) + QUANTILE * np.sqrt(needed)
    target = adaptive(day)
    target[max(0, opens - lead) : opens] = np.maximum(target[max(0, opens - lead) : opens], needed)
    window = slice(opens, opens + WINDOW_AFTER_S)
    target[window] = np.maximum(target[window], np.minimum(left, needed))
    return target


def _quantile(rate: Series) -> Series:
    mean = rate * REFILL_S
    target: Series = np.ceil(mean + QUANTILE * np.sqrt(mean) + 1.0)
    return target


#: No forecast is exact, and the model's calendar is: this one was told of a fifth fewer users.
SHORT_CALENDAR = "calendar, 20 % short"

POLICIES: dict[str, Policy] = {
    "none": fixed(0),
    "fixed 4": fixed(4),
    "fixed 1000": fixed(1000),
    "adaptive": adaptive,
    "calendar": calendar,
    SHORT_CALENDAR: partial(calendar, expects=0.8),
}
