"""Many cells at once through one day: a column is a cell under a policy, a row is a second.

Every second, in the order of what matters: idle workers take the starts; the call bucket gives to the starts
that found none, then to stops, then to the pool, which leaves `Priority.REFILL` of the bucket untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from muster.budget import Priority
from sim.study import figures as f
from sim.study.day import DAY, Day, Series

_BOOT = round(f.COLD_READY.value)
#: Whole numbers far below 2**24: half the memory, nothing lost.
Counts = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Course:
    """What was counted, each an array of (second, column); of one column after `column`."""

    warm: Counts
    cold: Counts
    launched_cold: Counts
    calls: Counts
    pool: Counts  #: idle and booting
    stop_backlog: Counts

    def column(self, index: int) -> Course:
        return Course(*(getattr(self, name)[:, index] for name in self.__slots__))


def run(days: Sequence[Day], targets: Sequence[Series]) -> Course:
    columns = len(days)
    demand = np.stack([day.demand for day in days], axis=1)
    stops = np.stack([day.stops for day in days], axis=1)
    target = np.stack(list(targets), axis=1)
    shape = (DAY, columns)
    warm, cold, launched, calls, pool, backlog = (np.zeros(shape, np.float32) for _ in range(6))
    idle, waiting, to_stop = target[0].copy(), np.zeros(columns), np.zeros(columns)
    tokens = np.full(columns, f.MUTATE_BURST.value)
    booting = np.zeros((_BOOT, columns))
    floor = Priority.REFILL.value * f.MUTATE_BURST.value
    for second in range(DAY):
        slot = second % _BOOT
        idle += booting[slot]
        booting[slot] = 0.0
        tokens = np.minimum(f.MUTATE_BURST.value, tokens + f.MUTATE_RATE.value)
        before = tokens
        hit = np.minimum(idle, demand[second])
        idle = idle - hit
        waiting += demand[second] - hit
        run_now = np.minimum(waiting, np.floor(tokens))
        waiting = waiting - run_now
        tokens = tokens - run_now
        surplus = np.maximum(idle - target[second], 0.0)
        # Surplus workers leave the pool at once; their StopTask waits its turn with the others.
        idle = idle - surplus
        to_stop += stops[second] + surplus
        stop_now = np.minimum(to_stop, np.floor(tokens))
        to_stop = to_stop - stop_now
        tokens = tokens - stop_now
        missing = np.maximum(target[second] - idle - booting.sum(axis=0), 0.0)
        fill = np.floor(np.minimum(missing, np.maximum(tokens - floor, 0.0)))
        tokens = tokens - fill
        booting[slot] = fill
        warm[second], cold[second], launched[second] = hit, demand[second] - hit, run_now
        calls[second], backlog[second] = before - tokens, to_stop
        pool[second] = idle + booting.sum(axis=0)
    return Course(warm, cold, launched, calls, pool, backlog)


def call_waits(column: Course) -> Series:
    """How long each cold start of one column waited for its call, shortest first.

    The queue is first come, first served, so the n-th to enter is the n-th to leave.
    """
    entered = np.repeat(np.arange(DAY), column.cold.astype(np.int64))
    left = np.repeat(np.arange(DAY), column.launched_cold.astype(np.int64))
    # Who still waits at midnight has waited at least until then.
    left = np.concatenate([left, np.full(entered.size - left.size, DAY)])
    return np.sort(left - entered).astype(np.float64)


def start_latency(hits: int, waits: Series, share: float) -> float:
    """A quantile of the time to ready over all starts: `hits` claims, the others a wait and a cold start."""
    rank = min(int(share * (hits + waits.size)), hits + waits.size - 1)
    return f.WARM_READY.value if rank < hits else f.COLD_READY.value + float(waits[rank - hits])
