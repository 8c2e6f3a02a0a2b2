"""The decision table: every row of the design has its test, and every combination has an answer."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from muster import blueprint
from muster.launchers.port import TaskStatus
from muster.model import Want
from muster.reconcile import (
    Adopt,
    Forget,
    Leave,
    Restart,
    Seen,
    SeenTask,
    StopTask,
    Wait,
    braked,
    judge_task,
    reconcile,
)
from muster.steps import ms

BOOT, MARKLESS, PENDING = (
    ms(d) for d in (blueprint.BOOT_PATIENCE, blueprint.MARKLESS_PATIENCE, blueprint.PENDING_PATIENCE)
)
GONE = Seen(Want.RUNNING, mark=False, lease=False, task=None)
LONG = replace(GONE, task=TaskStatus.RUNNING, task_age_ms=10 * BOOT, missing_ms=10 * MARKLESS)


def test_wanted_and_alive_is_left_alone() -> None:
    assert isinstance(reconcile(replace(GONE, mark=True)), Leave)


def test_a_start_under_way_is_waited_for() -> None:
    assert isinstance(reconcile(replace(GONE, lease=True)), Wait)
    assert isinstance(reconcile(replace(GONE, lease=True, task=TaskStatus.PENDING)), Wait)


def test_a_task_that_has_just_started_is_waited_for() -> None:
    assert isinstance(reconcile(replace(LONG, task_age_ms=BOOT - 1)), Wait)


def test_under_the_brake_a_running_task_is_waited_for_and_remembered() -> None:
    assert reconcile(replace(LONG, brake=True)) == Wait(
        "many marks vanished at once; it takes its mark again", note_missing=True
    )


def test_a_task_that_has_held_its_mark_is_not_booting() -> None:
    young = replace(LONG, task_age_ms=BOOT - 1, held=True)
    assert isinstance(reconcile(young), Restart)


def test_a_task_seen_without_its_mark_for_the_first_time_is_remembered() -> None:
    for missing in (None, 0, MARKLESS - 1):
        seen = reconcile(replace(LONG, missing_ms=missing))
        assert isinstance(seen, Wait)
        assert seen.note_missing


def test_a_task_long_without_its_mark_is_stopped_and_restarted() -> None:
    assert reconcile(LONG) == Restart("its task ran long without a mark", stop_task=True)


@pytest.mark.parametrize("ended", [TaskStatus.STOPPED, TaskStatus.MISSING])
def test_an_ended_task_is_restarted(ended: TaskStatus) -> None:
    assert reconcile(replace(GONE, task=ended)) == Restart("its task has ended", clear=True)


def test_an_ended_task_is_restarted_only_after_its_backoff() -> None:
    assert isinstance(reconcile(replace(GONE, task=TaskStatus.STOPPED, backoff_left_ms=1)), Wait)
    assert isinstance(reconcile(replace(GONE, backoff_left_ms=1)), Wait)


def test_a_user_without_any_task_is_restarted() -> None:
    assert reconcile(GONE) == Restart("it has no task")


@pytest.mark.parametrize("ended", [TaskStatus.STOPPED, TaskStatus.MISSING])
def test_a_mark_whose_task_is_known_to_have_ended_is_a_shadow(ended: TaskStatus) -> None:
    assert reconcile(replace(GONE, mark=True, task=ended)) == Restart(
        "its task has ended, the mark is a shadow", clear=True
    )


@pytest.mark.parametrize("mark", [True, False])
@pytest.mark.parametrize("want", [Want.STOPPED, Want.FAILED])
@pytest.mark.parametrize("task", [TaskStatus.RUNNING, TaskStatus.PENDING])
def test_what_runs_for_a_stopped_user_is_stopped(want: Want, mark: bool, task: TaskStatus) -> None:
    assert isinstance(reconcile(Seen(want, mark, False, task)), StopTask)


def test_a_stopped_user_with_nothing_left_is_forgotten() -> None:
    assert isinstance(reconcile(Seen(Want.STOPPED, False, False, None)), Forget)
    assert isinstance(reconcile(Seen(Want.STOPPED, True, False, None)), Wait)


def test_a_failed_user_stays_visible() -> None:
    assert isinstance(reconcile(Seen(Want.FAILED, False, False, None)), Leave)


def test_a_live_worker_of_a_user_the_store_lost_is_adopted() -> None:
    assert isinstance(reconcile(Seen(None, True, False, None)), Adopt)


def test_a_task_that_waits_for_capacity_is_given_half_an_hour() -> None:
    waiting = replace(GONE, task=TaskStatus.PENDING, task_age_ms=PENDING - 1)
    assert isinstance(reconcile(waiting), Wait)
    assert reconcile(replace(waiting, task_age_ms=PENDING)) == Restart(
        "its task never started", stop_task=True
    )


@pytest.mark.parametrize("want", [None, *Want])
def test_what_nobody_could_say_is_never_a_reason_to_act(want: Want | None) -> None:
    action = reconcile(Seen(want, False, False, TaskStatus.UNKNOWN, 10 * PENDING, 10 * PENDING))
    assert not isinstance(action, Restart | StopTask)


def test_the_table_is_total_and_never_kills_on_a_guess() -> None:
    ages = (0, MARKLESS, BOOT, PENDING)
    combinations = product(
        (None, *Want), (True, False), (True, False), (None, *TaskStatus), ages, (None, *ages), (0, 1),
        (0, 20), (True, False), (True, False),
    )  # fmt: skip
    count = 0
    for values in combinations:
        seen = Seen(*values)
        action = reconcile(seen)
        count += 1
        assert isinstance(action, Leave | Wait | Restart | StopTask | Forget | Adopt), seen
        assert action.why
        kills = isinstance(action, StopTask) or (isinstance(action, Restart) and action.stop_task)
        if kills:
            assert not seen.brake, seen
            assert seen.task in (TaskStatus.RUNNING, TaskStatus.PENDING), seen
            assert seen.want is not None, seen
        if isinstance(action, Restart):
            assert seen.want is Want.RUNNING, seen
            assert seen.backoff_left_ms == 0 or seen.mark, seen
        if isinstance(action, Forget):
            assert not seen.mark, seen
    assert count == 4 * 2 * 2 * 6 * 4 * 5 * 2 * 2 * 2 * 2


ORPHAN = SeenTask(TaskStatus.RUNNING, 10 * BOOT, suspected=True, owner_expects_it=False, brake=False)


def test_an_unknown_task_is_first_a_suspect_then_stopped() -> None:
    assert isinstance(judge_task(replace(ORPHAN, suspected=False)), Wait)
    assert isinstance(judge_task(ORPHAN), StopTask)


@pytest.mark.parametrize(
    "excuse",
    [
        {"status": TaskStatus.UNKNOWN},
        {"status": TaskStatus.STOPPED},
        {"status": TaskStatus.MISSING},
        {"age_ms": BOOT - 1},
        {"owner_expects_it": True},
        {"brake": True},
    ],
)
def test_no_task_is_stopped_while_something_speaks_for_it(excuse: dict[str, object]) -> None:
    assert not isinstance(judge_task(replace(ORPHAN, **excuse)), StopTask)  # type: ignore[arg-type]


def test_judging_is_total() -> None:
    for values in product(TaskStatus, (0, 10 * BOOT), *[(True, False)] * 3):
        assert isinstance(judge_task(SeenTask(*values)), Leave | Wait | StopTask)


def test_the_brake_needs_a_fifth_of_the_fleet_and_five_users() -> None:
    assert not braked(wanting=2, missing=2)
    assert not braked(wanting=4, missing=4)
    assert braked(wanting=5, missing=5)
    assert not braked(wanting=25, missing=5)
    assert braked(wanting=24, missing=5)
    assert braked(wanting=1000, missing=201)
    assert not braked(wanting=1000, missing=200)
