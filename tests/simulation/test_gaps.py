"""The worst time without a worker: the table of `docs/explanation/guarantees.md`, row by row.

Each row is one fault, at moments all through the minute between two sweeps (and at every effect that it can
cut in half). The longest time without a worker must stay within the row's number, and come near it: a number
that is never used is no bound but a guess.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from muster.blueprint import (
    BACKOFF_FIRST,
    BACKOFF_MAX,
    FN_MAINTENANCE,
    GIVE_UP_AFTER,
    MARK_TTL,
    PENDING_PATIENCE,
    START_LEASE,
    WORKER_CONTROL,
)
from muster.model import Want
from sim.audit import view_of
from sim.plan import START, Fault, Wish
from sim.world import World
from tests.simulation.histories import live, served

GUARANTEES = Path(__file__).parents[2] / "docs" / "explanation" / "guarantees.md"

assert FN_MAINTENANCE.every is not None
SWEEP_S = FN_MAINTENANCE.every.total_seconds()
MARK_S = MARK_TTL.total_seconds()
#: What a start adds in the simulator: up to 3 s until ECS runs the task and 0.65 s of boot, and a dozen
#: messages, of which one in thirty takes up to 1.2 s.
START_S = 6.0

#: When the fault strikes, all through a minute; the worker has been ready for longer than a minute by then.
MOMENTS = [100.0 + 5.0 * step for step in range(12)]


def _gap(world: World, since: float, user: str = "u0") -> float:
    """From `since` until somebody took the mark: the start is over but for the session."""
    return min(w.began_at - START - since for w in served(world, user) if w.began_at - START > since)


def _dies(at: float) -> Iterator[float]:
    yield _gap(live(Fault(at, "oom"), pool=2), at)


def _event_lost(at: float) -> Iterator[float]:
    yield _gap(live(Fault(at, "event", "lost"), Fault(at, "oom"), pool=2), at)


def _host_silent(at: float) -> Iterator[float]:
    def tweak(world: World) -> None:
        host = lambda: served(world)[0].task.host  # noqa: E731
        world.loop.after(at, lambda: world.ecs.lose_host(host(), silent=True))

    yield _gap(live(tweak=tweak, pool=2), at)


def _hangs(at: float) -> Iterator[float]:
    yield _gap(live(Fault(at, "freeze", amount=2000.0), pool=2), at)


def _start_crashes(at: float) -> Iterator[float]:
    for mode in ("crash_before", "crash_after"):
        for effect in range(7):
            crash = Fault(at - 1.0, mode, "worker_control", skip=effect)
            yield _gap(live(crash, wishes=(Wish(at, "start", "u0"),)), at)


def _coordinator_dies(at: float) -> Iterator[float]:
    """In the sweep that would have found the dead worker."""
    for effect in range(6):
        crash = Fault(at + MARK_S + 1.0, "crash_after", "maintenance", skip=effect)
        yield _gap(live(Fault(at, "event", "lost"), Fault(at, "oom"), crash, pool=2), at)


def _claim_lost(at: float) -> Iterator[float]:
    """On the Valkey list nothing brings it back; a claim on SQS is visible again after ten seconds."""
    for on_valkey in (True, False):
        crash = Fault(at - 1.0, "crash_before", "take_mark")
        yield _gap(live(crash, wishes=(Wish(at, "start", "u0"),), pool=2, on_valkey=on_valkey), at)


def _never_starts(at: float) -> Iterator[float]:
    never = Fault(at - 1.0, "launch", "never")
    yield _gap(live(never, wishes=(Wish(at, "start", "u0"),)), at)


def _store_away(at: float) -> Iterator[float]:
    """For everybody at once: the brake of a sweep must not hold up those whose workers have ended."""
    users = 6
    wishes = tuple(Wish(10.0 + n, "start", f"u{n}") for n in range(users))
    world = live(Fault(at, "store_away", amount=45.0), wishes=wishes, users=users)
    for user in world.users:
        if len(served(world, user)) > 1:
            yield _gap(world, at + 45.0, user)


def _fails_again_and_again(at: float) -> Iterator[float]:
    """From the first failure until the user is given up."""
    moments: list[float] = []

    def tweak(world: World) -> None:
        world.session_trouble.extend(["fails"] * (GIVE_UP_AFTER + 5))

        def look() -> None:
            if view_of(world, "u0").want is Want.FAILED:
                moments.append(world.loop.now - START)
            else:
                world.loop.after(1.0, look)

        world.loop.after(1.0, look)

    world = live(tweak=tweak, wishes=(Wish(at, "start", "u0"),), duration=7000.0)
    assert len(served(world)) == GIVE_UP_AFTER + 1
    yield moments[0] - (served(world)[0].began_at - START)


_BACKOFFS_S = [
    min(BACKOFF_FIRST.total_seconds() * 2**n, BACKOFF_MAX.total_seconds()) for n in range(GIVE_UP_AFTER)
]


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: its name there, the last words of its `worst`, and what shows it."""

    name: str
    worst: str
    bound_s: float
    gaps: Callable[[float], Iterator[float]]
    moments: tuple[float, ...] = tuple(MOMENTS)


ROWS = [
    Row("dies", "about 2 s", 2.0, _dies),
    Row("event-lost", "90 s", MARK_S + SWEEP_S, _event_lost),
    Row("silent-host", "150 s", MARK_S + 2 * SWEEP_S, _host_silent),
    Row("hangs", "150 s", MARK_S + 2 * SWEEP_S, _hangs),
    Row(
        "start-crashes",
        "90 s",
        max(WORKER_CONTROL.visibility.total_seconds(), START_LEASE.total_seconds() + SWEEP_S),
        _start_crashes,
        tuple(MOMENTS[::3]),
    ),
    Row("sweep-crashes", "one sweep more", MARK_S + 2 * SWEEP_S, _coordinator_dies, tuple(MOMENTS[::2])),
    Row("claim-lost", "80 s", START_LEASE.total_seconds() + SWEEP_S, _claim_lost),
    Row("never-starts", "31 min", PENDING_PATIENCE.total_seconds() + SWEEP_S, _never_starts),
    Row("store-away", "60 s after the outage", SWEEP_S, _store_away),
    Row(
        "fails",
        "105 min, then `failed`, with an alarm",
        sum(_BACKOFFS_S) + GIVE_UP_AFTER * SWEEP_S,
        _fails_again_and_again,
        (10.0, 30.0),
    ),
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_worst_time_without_a_worker(row: Row) -> None:
    worst = max(gap for at in row.moments for gap in row.gaps(at))
    assert 0.9 * row.bound_s < worst < row.bound_s + START_S


def test_the_table_has_these_rows_and_numbers() -> None:
    text = GUARANTEES.read_text()
    table = text[text.index("Worst time without a worker") :].split("\n\n")[1].splitlines()[2:]
    told = {cells[-2].strip(" `"): cells[-3].strip() for cells in (line.split("|") for line in table)}
    assert set(told) == {row.name for row in ROWS}
    for row in ROWS:
        assert told[row.name].endswith(row.worst), row.name
