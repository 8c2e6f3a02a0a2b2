"""The sweep and the events: what is repaired, what is left alone, and what one failure must not stop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import pairwise

import pytest

from muster import blueprint, keys, steps
from muster.errors import TryLater
from muster.launchers import fake
from muster.launchers.port import Launch, TaskKind
from muster.lifecycle import Outcome
from muster.maintenance import Batch, cut_into_batches, drain, sweep, sweep_batch, task_stopped
from muster.model import Assignment, Cause, Phase, Via, Want
from muster.warm_pool import manage
from tests.worlds import HandWorker, VirtualTime, World, command, virtual_world


@pytest.fixture
def wt(monkeypatch: pytest.MonkeyPatch) -> tuple[World, VirtualTime]:
    return virtual_world(monkeypatch)


def live(w: World, clock: VirtualTime, user: str = "u1", *, start: bool = True) -> HandWorker:
    """A user with a live cold worker."""
    if start:
        assert w.apply(command("start", user)) == [Outcome.LAUNCHED]
    view = w.user(user)
    given = Assignment(user, view.epoch, Via.COLD, Cause.START, view.issued_at_ms, view.command_id)
    worker = HandWorker(w.store, clock, f"w-{user}-{view.epoch}", view.task_id).start_cold(given)
    assert worker.heart is not None
    worker.heart.beat()
    return worker


def beat(*workers: HandWorker) -> None:
    for worker in workers:
        assert worker.heart is not None
        worker.heart.beat()


def asked(w: World, name: str) -> list[fake.Call]:
    return [call for call in w.launcher.calls if call.name == name]


def test_a_healthy_fleet_costs_one_listing_and_no_question(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    for n in range(20):
        live(w, clock, f"u{n}")
    w.launcher.calls.clear()
    report, batches = w.sweep("s1")
    assert report.users == sum(batch.users for batch in batches) == 20
    assert [(call.name, call.task_ids) for call in w.launcher.calls] == [("tasks", ()), ("describe", ())]
    assert w.repairs() == []


def test_a_dead_worker_is_repaired_with_the_epoch_that_was_seen(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = live(w, clock)
    w.launcher.finish(worker.me.task_id, 137)
    clock.advance(31)
    w.sweep("s1")
    (repair,) = w.repairs()
    assert (repair.cause, repair.seen_epoch) == (Cause.REPAIR, worker.given.epoch)
    assert w.apply(repair) == [Outcome.LAUNCHED]
    assert len(w.launcher.living()) == 1


def test_a_hung_worker_is_stopped_and_replaced(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    live(w, clock)
    clock.advance(61)
    for run in range(4):
        w.sweep(f"s{run}")
        if repairs := w.repairs():
            break
        clock.advance(60)
    assert w.apply(*repairs) == [Outcome.LAUNCHED]
    assert len(w.launcher.living()) == 1
    assert run <= 1


def test_repairs_back_off_and_are_given_up_visibly(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    w.apply(command("start"))
    starts = []
    for second in range(0, 3 * 3600, 10):
        for task_id in w.launcher.living():
            w.launcher.finish(task_id, 1, "it crashes at once")
            task_stopped(w.deps, task_id, "it crashes at once")
        if second % 60 == 0:
            w.sweep(f"s{second}")
        once = {repair.dedup_id: repair for repair in w.repairs()}  # the queue drops the sweep's repeat
        starts += [(second, result) for result in w.apply(*once.values())]
        clock.advance(10)
    begun = [second for second, result in starts if result is Outcome.LAUNCHED]
    assert len(begun) == blueprint.GIVE_UP_AFTER
    assert starts[-1][1] is Outcome.FAILED
    gaps = [b - a for a, b in pairwise(begun)]
    assert all(gap >= wanted for gap, wanted in zip(gaps, [20, 40, 80, 160] + [300] * 20, strict=False))
    assert max(gaps) <= 300 + 60
    view = w.user()
    assert (view.phase, view.reason) == (Phase.FAILED, "it crashes at once")
    _, batches = w.sweep("last")
    assert sum(batch.given_up for batch in batches) == 1
    assert w.apply(command("start")) == [Outcome.LAUNCHED]
    assert w.user().failures == 0


def test_what_runs_for_a_stopped_user_is_stopped_then_the_user_is_forgotten(
    wt: tuple[World, VirtualTime],
) -> None:
    w, _ = wt
    w.apply(command("start"))
    w.store.one(steps.begin_stop("u1", 1_900_000_000_000, "stop"))  # the handler died before StopTask
    w.sweep("s1")
    assert w.launcher.living() == {}
    _, (batch,) = w.sweep("s2")
    assert batch.forgotten == 1
    assert w.store.client.scard(keys.index(keys.bucket_of("u1"))) == 0
    assert w.user().want is Want.STOPPED  # still supersedes an old start


def test_when_many_marks_vanish_at_once_nothing_is_killed_and_workers_come_back(
    wt: tuple[World, VirtualTime],
) -> None:
    w, clock = wt
    workers = [live(w, clock, f"u{n}") for n in range(10)]
    for _ in range(8):
        clock.advance(10)
        beat(*workers)
    for n in range(10):
        w.store.client.delete(keys.active(f"u{n}"))
    _, batches = w.sweep("s1")
    assert all(batch.brake for batch in batches)
    assert w.repairs() == []
    beat(*workers)
    assert all(worker.lease.may_act() for worker in workers)
    clock.advance(1)
    _, batches = w.sweep("s2")
    assert not any(batch.brake for batch in batches)
    assert len(w.launcher.living()) == 10
    assert w.repairs() == []


def test_the_brake_does_not_protect_hung_workers_for_ever(wt: tuple[World, VirtualTime]) -> None:
    """Six of ten hang: that looks like a lost store once, and like six hung workers a minute later."""
    w, clock = wt
    workers = [live(w, clock, f"u{n}") for n in range(10)]
    for second in range(240):
        clock.advance(1)
        if second % 10 == 0:
            beat(*workers[6:])
        if second % 60 == 0:
            w.sweep(f"s{second}")
            w.apply(*w.repairs())
    assert sorted(w.user(f"u{n}").failures for n in range(10)) == [0] * 4 + [1] * 6


def test_tasks_that_wait_for_capacity_do_not_pull_the_brake(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    hung = live(w, clock, "hung")
    w.launcher.plan(*[fake.never()] * 8)
    w.apply(*(command("start", f"u{n}") for n in range(8)))
    clock.advance(130)
    _, batches = w.sweep("s1")
    assert not any(batch.brake for batch in batches)
    clock.advance(60)
    w.sweep("s2")
    assert [repair.user_id for repair in w.repairs()] == ["hung"]
    assert hung.me.task_id not in w.launcher.living()
    assert len(w.launcher.living()) == 8


class NoStop(fake.FakeLauncher):
    """StopTask is throttled."""

    def stop(self, task_id: str, reason: str) -> None:
        raise TryLater("throttled")


def with_launcher(w: World, launcher: fake.FakeLauncher) -> fake.FakeLauncher:
    w.launcher = launcher
    object.__setattr__(w.deps, "launcher", launcher)
    return launcher


def test_one_stop_that_is_throttled_does_not_keep_the_others_from_repair(
    wt: tuple[World, VirtualTime],
) -> None:
    w, clock = wt
    with_launcher(w, NoStop(clock))
    live(w, clock, "hung")
    dead = live(w, clock, "dead")
    clock.advance(61)
    w.sweep("s1")
    w.repairs()
    w.launcher.finish(dead.me.task_id, 1)
    clock.advance(60)
    w.sweep("s2")
    assert [repair.user_id for repair in w.repairs()] == ["dead"]


def test_an_orphan_is_suspect_in_one_sweep_and_stopped_in_the_next(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    live(w, clock)
    orphan = w.launcher.run(Launch(TaskKind.USER, "u1", epoch=1))
    clock.advance(61)
    live(w, clock, "u2")
    w.sweep("s1")
    report, _ = w.sweep("s2")
    assert (report.suspects, report.orphans_stopped) == (1, 0)
    report, _ = w.sweep("s3")
    assert (report.suspects, report.orphans_stopped) == (0, 1)
    assert orphan not in w.launcher.living()


def test_a_coordinator_that_died_holds_up_no_sweep_after_the_next(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    assert w.store.one(steps.begin_sweep("dead")) == ("begin", "")
    assert w.sweep("s1")[0].busy == "dead"
    clock.advance((blueprint.FN_MAINTENANCE.every or timedelta()).total_seconds())
    assert w.sweep("s2")[0].busy == ""


@pytest.mark.parametrize("asleep", [False, True])
def test_a_slow_coordinator_keeps_its_turn_and_one_that_slept_through_it_stops_nothing(
    wt: tuple[World, VirtualTime], asleep: bool
) -> None:
    w, clock = wt
    orphan = suspect(w, clock)
    live(w, clock)
    lease = blueprint.SWEEP_LEASE.total_seconds()

    def invoke(_: Sequence[Batch]) -> None:
        clock.advance(lease + 1 if asleep else lease / 2)

    if asleep:
        with pytest.raises(TryLater, match="turn"):
            sweep(w.deps, "s3", invoke)
    else:
        assert sweep(w.deps, "s3", invoke).orphans_stopped == 1
        assert w.store.client.pttl(keys.SWEEP_RUN) > lease * 1000
    assert (orphan in w.launcher.living()) == asleep


def test_job_workers_are_not_the_sweeps_concern(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    job = w.launcher.run(Launch(TaskKind.JOB, "backtests", launch_id="j1"))
    clock.advance(600)
    for run in range(4):
        w.sweep(f"s{run}")
    assert job in w.launcher.living()


def suspect(w: World, clock: VirtualTime) -> str:
    """A pool task that two sweeps have seen without an owner, one judgement before its end."""
    task_id = w.launcher.run(Launch(TaskKind.POOL, "default", launch_id="lost"))
    clock.advance(61)
    w.sweep("s1")
    w.sweep("s2")
    return task_id


def test_a_suspect_that_has_taken_a_mark_since_is_not_stopped(wt: tuple[World, VirtualTime]) -> None:
    """What the sweep before wrote down is a minute old; live workers were killed as orphans that way."""
    w, clock = wt
    task_id = suspect(w, clock)
    w.add_idle("other")
    w.apply(command("start"))
    claim = w.next_claim()
    worker = HandWorker(w.store, clock, "w1", task_id).start_cold(claim.assignment())
    beat(worker)
    report, _ = w.sweep("s3")
    assert report.orphans_stopped == 0
    assert task_id in w.launcher.living()


def test_a_suspect_that_has_joined_the_pool_since_is_not_stopped(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    task_id = suspect(w, clock)
    HandWorker(w.store, clock, "w1", task_id).start_in_pool()
    report, _ = w.sweep("s3")
    assert report.orphans_stopped == 0
    assert task_id in w.launcher.living()


def test_without_a_whole_sweep_nobody_is_judged(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    workers = [live(w, clock, f"u{n}") for n in range(3)]
    clock.advance(20)
    beat(*workers)
    orphan = w.launcher.run(Launch(TaskKind.POOL, "default", launch_id="lost"))
    clock.advance(9)
    for second in range(6):
        clock.advance(11)
        beat(*workers)

        def only_the_first(batches: Sequence[Batch]) -> None:
            assert len(batches) == 1  # and it is never run

        report = sweep(w.deps, f"s{second}", only_the_first)
        assert (report.orphans_stopped, report.suspects) == (0, 0)
    assert orphan in w.launcher.living()
    assert len(w.launcher.living()) == 4


class NoList(fake.FakeLauncher):
    """ListTasks is throttled while `throttled` is set."""

    throttled = True

    def tasks(self) -> Iterator[str]:
        if self.throttled:
            raise TryLater("throttled")
        return super().tasks()


def test_a_throttled_listing_repairs_users_and_judges_nobody(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    launcher = with_launcher(w, NoList(clock))
    dead = live(w, clock)
    launcher.run(Launch(TaskKind.POOL, "default", launch_id="lost"))
    launcher.finish(dead.me.task_id, 1)
    clock.advance(61)
    for run in range(3):
        report, _ = w.sweep(f"s{run}")
        assert (report.busy, report.orphans_stopped, report.suspects) == ("", 0, 0)
        assert len(w.repairs()) == 1
    assert w.store.client.ttl(keys.sweep_done("s2")) > 0  # nothing of a sweep is kept for ever


def test_throttled_questions_change_nothing(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    live(w, clock)
    w.launcher.describe_throttled = True
    clock.advance(300)
    for run in range(3):
        w.sweep(f"s{run}")
    assert w.repairs() == []
    assert len(w.launcher.living()) == 1


def test_a_sweep_that_failed_does_not_block_the_next(wt: tuple[World, VirtualTime]) -> None:
    w, _ = wt
    w.apply(command("start"))

    def refuse(_: Sequence[Batch]) -> None:
        raise TryLater("maintenance_worker could not be invoked")

    with pytest.raises(TryLater):
        sweep(w.deps, "s1", refuse)
    report, _ = w.sweep("s2")
    assert report.busy == ""


def test_two_sweeps_do_not_overlap(wt: tuple[World, VirtualTime]) -> None:
    w, _ = wt
    w.apply(command("start"))
    busy: list[str] = []
    sweep(w.deps, "s1", lambda _: busy.append(sweep(w.deps, "s2", lambda _: None).busy))
    assert busy == ["s1"]


def test_batches_hold_whole_buckets_up_to_their_size() -> None:
    assert cut_into_batches("r", [0, 0]) == []
    most = blueprint.SWEEP_BATCH_USERS
    assert [b.buckets for b in cut_into_batches("r", [most, 1, 0, most - 1, 5 * most, 1])] == [
        (0,), (1, 3), (4,), (5,),
    ]  # fmt: skip


def test_a_start_between_the_look_and_the_forgetting_keeps_its_user_in_the_index(
    wt: tuple[World, VirtualTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    w, _ = wt
    w.apply(command("stop"))
    real = w.launcher.describe

    def describe(task_ids: Sequence[str]) -> object:
        w.apply(command("start"))
        return real(task_ids)

    monkeypatch.setattr(w.launcher, "describe", describe)
    report = sweep_batch(w.deps, Batch("r", 0, (keys.bucket_of("u1"),)))
    assert report.forgotten == 0
    assert w.store.client.sismember(keys.index(keys.bucket_of("u1")), "u1")


def test_a_stopped_event_starts_the_successor_at_once_and_only_once(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = live(w, clock)
    w.launcher.finish(worker.me.task_id, 137)
    assert task_stopped(w.deps, worker.me.task_id, "OOM") == "repair sent"
    assert task_stopped(w.deps, worker.me.task_id, "OOM") == "not in use"
    (repair,) = w.repairs()
    assert w.apply(repair) == [Outcome.LAUNCHED]
    assert task_stopped(w.deps, worker.me.task_id, "OOM") == "not in use"  # late
    assert w.user().lease is not None


def test_the_event_of_a_superseded_task_touches_nothing(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    old = live(w, clock)
    w.apply(command("restart"))
    beat(old)
    old.leave()
    new = live(w, clock, start=False)
    assert task_stopped(w.deps, old.me.task_id, "exit code 4") == "not in use"
    assert new.lease.may_act()
    assert w.user().live_mark is not None
    assert w.repairs() == []


def test_the_event_of_a_stopped_users_task_starts_nothing(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = live(w, clock)
    w.apply(command("stop"))
    beat(worker)
    worker.leave()
    assert task_stopped(w.deps, worker.me.task_id, "exit code 4") == "no worker wanted"
    assert w.repairs() == []


def test_an_event_while_backing_off_is_left_to_the_sweep(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = live(w, clock)
    task_stopped(w.deps, worker.me.task_id, "crash")
    w.apply(*w.repairs())
    second = live(w, clock, start=False)
    assert task_stopped(w.deps, second.me.task_id, "crash") == "backing off"
    assert w.user().phase is Phase.BACKING_OFF
    w.sweep("s1")
    assert w.repairs() == []
    clock.advance(21)
    w.sweep("s2")
    assert len(w.repairs()) == 1


def test_a_wished_restart_is_no_failure(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = live(w, clock)
    w.store.client.set(keys.restarting("u1"), 1, ex=60)
    assert task_stopped(w.deps, "some-older-task", "") == "not in use"
    worker.leave()
    assert task_stopped(w.deps, worker.me.task_id, "exit code 0") == "repair sent"
    assert w.apply(*w.repairs()) == [Outcome.LAUNCHED]
    assert w.user().failures == 0


def test_an_ended_pool_task_frees_its_place_and_wakes_the_manager(wt: tuple[World, VirtualTime]) -> None:
    w, _ = wt
    manage(w.deps, 1, "r1")
    (task_id,) = w.launcher.living()
    assert task_stopped(w.deps, task_id, "no image") == "pool place freed"
    assert w.woken == [1]


def test_a_draining_host_moves_its_users_and_leaves_foreign_tasks_alone(
    wt: tuple[World, VirtualTime],
) -> None:
    w, clock = wt
    moved, elsewhere, idle = live(w, clock, "u1"), live(w, clock, "u2"), "task-idle"
    w.add_idle("idle")
    assert drain(w.deps, [moved.me.task_id, idle, "an-api-task"]) == 1
    (move,) = w.repairs()
    assert (move.user_id, move.cause) == ("u1", Cause.MOVE)
    assert [call.task_ids for call in asked(w, "stop")] == [(idle,)]
    assert w.apply(move) == [Outcome.LAUNCHED]
    beat(moved, elsewhere)
    assert not moved.lease.may_act()
    assert elsewhere.lease.may_act()
    moved.leave()
    assert live(w, clock, "u1", start=False).lease.may_act()
    assert w.user("u1").failures == 0
    assert drain(w.deps, [moved.me.task_id]) == 0  # the event comes twice


def test_a_lost_user_is_counted_as_unaccounted(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    w.apply(command("start"))
    w.store.client.delete(keys.starting("u1"))
    w.store.client.hset(keys.desired("u1"), mapping={"retry_at": int((clock.now() + 1000) * 1000)})
    w.store.client.hdel(keys.desired("u1"), "task_id")
    clock.advance(999)
    _, (report,) = w.sweep("s1")
    assert report.unaccounted == 0
    assert report.phases == {Phase.BACKING_OFF: 1}
