"""The atomic steps of a user's life, on fakeredis, on the real server and on a real one-node cluster."""

from __future__ import annotations

from threading import Event

import pytest

from muster import keys, steps
from muster.clock import SystemClock
from muster.model import Assignment, Cause, Phase, Via, Want
from muster.steps import Begin, Settled
from muster.store import Store
from worker.lease import Lease
from worker.session import Context

START, RESTART, REPAIR = Cause.START, Cause.RESTART, Cause.REPAIR


def begin(
    store: Store, at: int = 1000, command: str = "c1", cause: Cause = START, seen: int = 0
) -> Begin | Settled:
    return store.one(steps.begin_start("u1", cause, at, command, "ref/1", seen))


def begun(store: Store, at: int = 1000, command: str = "c1", cause: Cause = START, seen: int = 0) -> Begin:
    answer = begin(store, at, command, cause, seen)
    assert isinstance(answer, Begin), answer
    return answer


def given(epoch: int, at: int = 1000, command: str = "c1") -> Assignment:
    return Assignment("u1", epoch, Via.COLD, START, at, command, "ref/1")


def take(store: Store, epoch: int, worker: str = "w1", at: int = 1000) -> tuple[str, ...]:
    return store.one(steps.take_mark(given(epoch, at), worker, f"task-{worker}", "v1"))


def beat(store: Store, epoch: int, worker: str = "w1", ready: bool = True, at: int = 1000) -> tuple[str, ...]:
    return store.one(steps.beat_mark(given(epoch, at), worker, f"task-{worker}", "v1", "{}", ready=ready))


def test_a_start_begins_takes_its_mark_and_is_ready(any_store: Store) -> None:
    first = begun(any_store)
    assert any_store.one(steps.read_user("u1")).phase is Phase.STARTING
    assert take(any_store, first.epoch) == ("taken",)
    assert any_store.one(steps.read_user("u1")).phase is Phase.CONNECTING
    assert beat(any_store, first.epoch) == ("kept",)
    view = any_store.one(steps.read_user("u1", history=True))
    assert (view.phase, view.want, view.epoch) == (Phase.READY, Want.RUNNING, first.epoch)
    assert view.mark is not None
    assert 29_000 < view.mark.ttl_ms <= 30_000
    assert view.lease is None
    assert [entry.event for entry in view.history][::-1] == ["begin start", "mark taken", "ready"]


def test_an_epoch_is_at_least_the_servers_time_and_rises_over_a_lost_counter(any_store: Store) -> None:
    first = begun(any_store)
    now_ms = any_store.one(steps.read_user("u1")).now_ms
    assert 0 <= now_ms - first.epoch < 5_000
    any_store.client.delete(keys.epoch("u1"), keys.starting("u1"))
    assert begun(any_store, 1001, "c2").epoch >= first.epoch


def test_two_starts_in_one_millisecond_still_get_two_epochs(any_store: Store) -> None:
    any_store.client.set(keys.epoch("u1"), 9_999_999_999_999)
    assert begun(any_store).epoch == 10_000_000_000_000


def test_a_repeat_of_a_start_resumes_the_same_epoch(any_store: Store) -> None:
    first = begun(any_store)
    assert begun(any_store) == first


def test_another_start_finds_the_first_one_starting_then_active(any_store: Store) -> None:
    first = begun(any_store)
    assert begin(any_store, 1001, "c2") == Settled("starting", str(first.epoch))
    take(any_store, first.epoch)
    assert begin(any_store, 1002, "c3") == Settled("active", str(first.epoch))


def test_an_older_command_is_superseded(any_store: Store) -> None:
    any_store.one(steps.begin_stop("u1", 2000, "stop"))
    assert begin(any_store, 1999, "redriven") == Settled("superseded", "stopped")
    begun(any_store, 2001, "newer")
    assert any_store.one(steps.begin_stop("u1", 1500, "late")) == ("superseded", "running")


def test_a_stop_fences_a_start_in_flight(any_store: Store) -> None:
    first = begun(any_store)
    any_store.one(steps.bind_start("u1", first.epoch, "task-1"))
    tag, epoch, *tasks = any_store.one(steps.begin_stop("u1", 1001, "stop"))
    assert (tag, tasks) == ("stopping", ["task-1"])
    assert int(epoch) > first.epoch
    assert take(any_store, first.epoch) == ("stale", epoch)
    assert any_store.one(steps.bind_start("u1", first.epoch, "task-2"))[0] == "stale"
    assert any_store.one(steps.read_user("u1")).phase is Phase.STOPPED


def test_a_repeated_stop_names_the_same_tasks_and_moves_no_epoch(any_store: Store) -> None:
    first = begun(any_store)
    take(any_store, first.epoch)
    once = any_store.one(steps.begin_stop("u1", 1001, "stop"))
    assert any_store.one(steps.begin_stop("u1", 1001, "stop")) == once
    assert once[2:] == ("task-w1",)


def test_one_epoch_serves_one_worker_ever(any_store: Store) -> None:
    first = begun(any_store)
    assert take(any_store, first.epoch, "w1") == ("taken",)
    assert take(any_store, first.epoch, "w2") == ("duplicate", "w1")
    any_store.client.delete(keys.active("u1"))  # w1's mark ran out
    assert take(any_store, first.epoch, "w2") == ("duplicate", "w1")
    assert beat(any_store, first.epoch, "w2") == ("lost", "w1")
    assert take(any_store, first.epoch, "w1") == ("taken",)


def test_a_successor_waits_until_the_predecessor_lets_go(any_store: Store) -> None:
    old = begun(any_store)
    take(any_store, old.epoch, "w1")
    new = begun(any_store, 1001, "c2", RESTART)
    assert take(any_store, new.epoch, "w2", 1001) == ("held", "w1")
    assert beat(any_store, old.epoch, "w1") == ("fenced", str(new.epoch))
    assert any_store.one(steps.drop_mark("u1", old.epoch, "w1", "fenced")) == ("dropped",)
    assert take(any_store, new.epoch, "w2", 1001) == ("taken",)


def test_only_the_holder_can_drop_its_mark(any_store: Store) -> None:
    first = begun(any_store)
    take(any_store, first.epoch, "w1")
    assert any_store.one(steps.drop_mark("u1", first.epoch, "w2", "x")) == ("not_holder",)
    assert any_store.one(steps.drop_mark("u1", first.epoch - 1, "w1", "x")) == ("not_holder",)
    assert any_store.one(steps.read_user("u1")).mark is not None


def test_a_restart_twice_delivered_restarts_once(any_store: Store) -> None:
    take(any_store, begun(any_store).epoch, "w1")
    again = begun(any_store, 1001, "r1", RESTART)
    any_store.one(steps.drop_mark("u1", again.epoch - 1, "w1", "x"))
    any_store.client.delete(keys.active("u1"))
    take(any_store, again.epoch, "w2", 1001)
    assert begin(any_store, 1001, "r1", RESTART) == Settled("active", str(again.epoch))


def test_a_worker_restores_an_emptied_store_with_its_next_beat(any_store: Store) -> None:
    first = begun(any_store)
    take(any_store, first.epoch)
    any_store.client.flushall()
    assert beat(any_store, first.epoch) == ("restored",)
    view = any_store.one(steps.read_user("u1"))
    assert (view.want, view.epoch, view.task_id) == (Want.RUNNING, first.epoch, "task-w1")
    assert (view.issued_at_ms, view.command_id) == (1000, "c1")
    assert begin(any_store, 999, "old") == Settled("superseded", "running")


def test_a_ghost_mark_brought_back_by_a_failover_does_not_stop_the_newer_worker(any_store: Store) -> None:
    old = begun(any_store)
    take(any_store, old.epoch, "w1")
    # the failover lost everything after this: the drop, the new epoch, the new mark
    assert beat(any_store, old.epoch + 5, "w2", at=1001) == ("restored",)
    assert beat(any_store, old.epoch, "w1") == ("fenced", str(old.epoch + 5))


def test_a_repair_does_nothing_once_the_epoch_has_moved(any_store: Store) -> None:
    first = begun(any_store)
    any_store.client.delete(keys.starting("u1"))
    second = begun(any_store, 1001, "c2")
    assert begin(any_store, 0, "r", REPAIR, first.epoch) == Settled("moved", str(second.epoch))


def test_a_repair_of_a_stopped_user_is_superseded(any_store: Store) -> None:
    first = begun(any_store)
    any_store.one(steps.begin_stop("u1", 1001, "stop"))
    assert begin(any_store, 0, "r", REPAIR, first.epoch) == Settled("superseded", "stopped")


def test_repairs_back_off_and_are_given_up_after_twenty(any_store: Store) -> None:
    epoch = begun(any_store).epoch
    waits = []
    for attempt in range(20):
        any_store.client.delete(keys.starting("u1"))
        epoch = begun(any_store, 0, f"r{attempt}", REPAIR, epoch).epoch
        view = any_store.one(steps.read_user("u1"))
        waits.append(round((view.retry_at_ms - view.now_ms) / 1000))
    assert waits[:6] == [20, 40, 80, 160, 300, 300]
    any_store.client.delete(keys.starting("u1"))
    assert begin(any_store, 0, "r20", REPAIR, epoch) == Settled("failed", "20")
    assert any_store.one(steps.read_user("u1")).phase is Phase.FAILED
    assert take(any_store, epoch)[0] == "stale"  # a late worker of the last try cannot come back
    begun(any_store, 2000, "person")
    assert any_store.one(steps.read_user("u1")).failures == 0


def test_a_long_ready_worker_forgets_its_failures(any_store: Store) -> None:
    epoch = begun(any_store).epoch
    any_store.client.delete(keys.starting("u1"))
    epoch = begun(any_store, 0, "r", REPAIR, epoch).epoch
    take(any_store, epoch)
    beat(any_store, epoch)
    assert any_store.one(steps.read_user("u1")).failures == 1
    ready_at = int(any_store.client.hget(keys.active("u1"), "ready_at"))
    any_store.client.hset(keys.active("u1"), "ready_at", ready_at - 61_000)
    beat(any_store, epoch)
    view = any_store.one(steps.read_user("u1"))
    assert (view.failures, view.retry_at_ms) == (0, 0)


def test_a_stopped_task_takes_away_only_what_it_held(any_store: Store) -> None:
    epoch = begun(any_store).epoch
    take(any_store, epoch, "w1")
    assert any_store.one(steps.task_stopped("u1", "task-other", ""))[0] == "not_mine"
    assert any_store.one(steps.read_user("u1")).mark is not None
    assert any_store.one(steps.task_stopped("u1", "task-w1", "OOM")) == ("cleared", str(epoch))
    view = any_store.one(steps.read_user("u1"))
    assert (view.mark, view.task_id, view.reason) == (None, "", "OOM")
    assert any_store.one(steps.task_stopped("u1", "task-w1", ""))[0] == "not_mine"  # the event comes twice


@pytest.mark.parametrize("final", [True, False])
def test_a_worker_that_said_why_it_left_is_not_contradicted_by_who_saw_it_end(
    any_store: Store, final: bool
) -> None:
    epoch = begun(any_store).epoch
    take(any_store, epoch)
    beat(any_store, epoch)
    any_store.one(steps.drop_mark("u1", epoch, "w1", "the broker does not accept this key", final=final))
    any_store.one(steps.task_stopped("u1", "task-w1", "the process ended"))
    view = any_store.one(steps.read_user("u1"))
    assert view.reason == "the broker does not accept this key"
    assert (view.want is Want.FAILED) == final


def test_a_failed_launch_may_try_again_under_the_same_epoch(any_store: Store) -> None:
    first = begun(any_store)
    assert any_store.one(steps.abort_start("u1", first.epoch, "no room", again=True)) == ("again", "1")
    assert begun(any_store) == Begin(first.epoch, 1, 1000, "c1", "ref/1")
    assert any_store.one(steps.abort_start("u1", first.epoch, "never", again=False)) == ("given_back",)
    assert any_store.one(steps.read_user("u1")).lease is None


def test_a_forgotten_user_is_not_forgotten_when_a_start_came_between(any_store: Store) -> None:
    any_store.one(steps.begin_stop("u1", 1000, "stop"))
    seen = any_store.one(steps.read_user("u1")).epoch
    assert any_store.one(steps.forget_user("u1", seen)) == ("forgotten",)
    begun(any_store, 1001, "c2")
    assert any_store.one(steps.forget_user("u1", seen))[0] == "moved"


def test_a_session_that_can_never_work_ends_visibly_and_without_retries(any_store: Store) -> None:
    first = begun(any_store)
    take(any_store, first.epoch)
    any_store.one(steps.drop_mark("u1", first.epoch, "w1", "bad credentials", final=True))
    view = any_store.one(steps.read_user("u1"))
    assert (view.phase, view.reason) == (Phase.FAILED, "bad credentials")


@pytest.mark.parametrize("steps_at_once", [1, 3])
def test_scripts_are_loaded_when_the_server_has_forgotten_them(any_store: Store, steps_at_once: int) -> None:
    any_store.client.script_flush()
    answers = any_store.run(*(steps.read_user(f"u{n}") for n in range(steps_at_once)))
    assert [view.want for view in answers] == [None] * steps_at_once


def test_a_glance_names_the_task_of_a_well_worker_and_of_no_other(any_store: Store) -> None:
    """What a sweep does not look at closer must need nothing: every doubt is an empty answer."""

    def glance() -> str:
        return steps.well_task(*any_store.run(*steps.glance("u1")))

    def publish(state: str, *, ready: bool = True) -> None:
        beaten = steps.beat_mark(given(first.epoch), "w1", "task-w1", "v1", state, ready=ready)
        assert any_store.one(beaten) == ("kept",)

    opened, reopening = (
        Context(
            given(1), Lease(SystemClock()), Event(), lambda: None, {"host": "h", "phase": phase}
        ).state_json()
        for phase in (Phase.READY.value, Phase.CONNECTING.value)
    )
    assert glance() == ""
    first = begun(any_store)
    assert glance() == ""
    assert take(any_store, first.epoch) == ("taken",)
    publish(opened, ready=False)
    assert glance() == ""  # never ready yet
    publish(opened)
    assert glance() == "task-w1"
    publish(reopening)
    assert glance() == ""
    publish(opened)
    any_store.one(steps.begin_stop("u1", 2000, "c2"))
    assert glance() == ""  # on its way out
