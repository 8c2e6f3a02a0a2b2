"""The heartbeat: what it believes, when it ends the worker, and what it survives."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from redis.exceptions import OutOfMemoryError, ReadOnlyError

from muster import keys, steps
from muster.blueprint import MARK_BEAT
from muster.errors import TryLater
from muster.model import Phase
from tests.worlds import HandWorker, VirtualTime, World, command, pop_claim, virtual_world
from worker.control import Control
from worker.exits import Exit
from worker.heart import Heart


@pytest.fixture
def wt(monkeypatch: pytest.MonkeyPatch) -> tuple[World, VirtualTime]:
    return virtual_world(monkeypatch)


def serving(w: World, clock: VirtualTime, name: str = "w1", user: str = "u1") -> HandWorker:
    worker = HandWorker(w.store, clock, name).start_in_pool()
    w.apply(command("start", user))
    worker.step(lambda: pop_claim(w.store.client))
    assert worker.heart is not None
    return worker


def beat(worker: HandWorker) -> None:
    assert worker.heart is not None
    worker.heart.beat()


def away(w: World, gone: bool) -> None:
    w.store.client.connection_pool.connection_kwargs["server"].connected = not gone


def test_a_beat_extends_mark_and_state_and_says_whose_task_it_is(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = serving(w, clock)
    clock.advance(20)
    beat(worker)
    view = w.user()
    assert view.mark is not None
    assert view.mark.ttl_ms == 30_000
    assert view.phase is Phase.READY
    assert w.store.one(steps.owner_of("task-w1")) == "u1"
    assert worker.lease.seconds_left == 30


def test_a_silent_store_stops_the_worker_acting_at_25_s_and_ends_it_at_30_s(
    wt: tuple[World, VirtualTime],
) -> None:
    w, clock = wt
    worker = serving(w, clock)
    beat(worker)
    away(w, True)
    for second in range(1, 30):
        clock.advance(1)
        beat(worker)
        assert worker.lease.may_act() == (second < 25), second
        assert not worker.stopping.is_set(), second
    clock.advance(1)
    beat(worker)
    assert worker.stopping.is_set()
    away(w, False)
    assert worker.leave() is Exit.LEASE_LOST


def test_a_worker_frozen_for_40_s_asks_nobody_and_is_out(wt: tuple[World, VirtualTime]) -> None:
    """Its mark is gone and a successor may act: even a friendly answer must not bring it back."""
    w, clock = wt
    frozen = serving(w, clock)
    clock.advance(40)
    assert not frozen.lease.may_act()
    beat(frozen)
    assert w.user().mark is None  # it did not even write its mark again
    assert frozen.stopping.is_set()
    assert frozen.leave() is Exit.LEASE_LOST


def test_renewals_that_come_back_in_time_let_it_act_on(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = serving(w, clock)
    away(w, True)
    clock.advance(27)
    beat(worker)
    assert worker.heart is not None
    assert worker.heart.next_in == 1.0  # asked again soon, not after a whole beat
    away(w, False)
    beat(worker)
    assert worker.lease.may_act()
    assert worker.heart.next_in == MARK_BEAT.total_seconds()


def test_a_fenced_worker_stops_acting_with_the_answer(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = serving(w, clock)
    w.apply(command("stop"))
    beat(worker)
    assert not worker.lease.may_act()
    assert worker.leave() is Exit.FENCED
    assert w.user().mark is None


def test_a_worker_whose_epoch_another_holds_is_out(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = serving(w, clock)
    w.store.client.hset(keys.desired("u1"), "worker_id", "other")
    beat(worker)
    assert worker.lease.ended == "lost other"


def test_an_emptied_store_is_restored_by_the_next_beat(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = serving(w, clock)
    beat(worker)
    before = w.user()
    w.store.client.flushall()
    beat(worker)
    after = w.user()
    assert (after.want, after.epoch, after.task_id) == (before.want, before.epoch, before.task_id)
    assert w.store.client.sismember(keys.index(keys.bucket_of("u1")), "u1")
    assert w.store.one(steps.owner_of("task-w1")) == "u1"


def test_a_restored_user_is_indexed_even_if_the_store_goes_away_in_between(
    wt: tuple[World, VirtualTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    w, clock = wt
    worker = serving(w, clock)
    beat(worker)
    w.store.client.flushall()
    real, calls = w.store.run, []

    def second_call_fails(*wanted: Any) -> list[Any]:
        calls.append(1)
        if len(calls) == 2:
            raise TryLater("Valkey is away")
        return real(*wanted)

    monkeypatch.setattr(w.store, "run", second_call_fails)
    beat(worker)
    assert not w.store.client.sismember(keys.index(keys.bucket_of("u1")), "u1")
    beat(worker)
    assert w.store.client.sismember(keys.index(keys.bucket_of("u1")), "u1")


@pytest.mark.parametrize("error", [OutOfMemoryError("OOM"), ReadOnlyError("READONLY"), TryLater("away")])
def test_no_answer_of_the_server_kills_the_heart(
    wt: tuple[World, VirtualTime], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    w, clock = wt
    worker = serving(w, clock)

    def refuse(*_: Any) -> list[Any]:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(w.store, "run", refuse)
        beat(worker)
        clock.advance(30)
        beat(worker)
    assert worker.lease.ended == "the mark could not be renewed in time"
    assert worker.stopping.is_set()


def test_no_beat_after_the_mark_was_dropped(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = serving(w, clock)
    worker.leave()
    beat(worker)
    assert w.user().mark is None


def test_a_main_thread_that_does_not_get_out_in_time_is_ended_for_it(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = serving(w, clock)
    died = threading.Event()
    codes: list[int] = []

    def wait(_: float) -> None:
        clock.advance(10)

    def die(code: int) -> None:
        codes.append(code)
        died.set()
        heart.stop()

    heart = Heart(worker.me, worker.ctx, wait=wait, die=die)
    w.apply(command("stop"))
    heart.start()
    assert died.wait(10)
    assert codes == [Exit.LEASE_LOST]


def test_state_that_is_no_json_is_the_sessions_error_not_the_hearts(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = serving(w, clock)
    with pytest.raises(TypeError):
        worker.ctx.publish(orders={1, 2})
    beat(worker)
    assert worker.lease.may_act()


class BrokenClient:
    """A client whose writes fail: the channel still delivers."""

    def __init__(self, body: str) -> None:
        self.body = body

    def pubsub(self, **_: Any) -> BrokenClient:
        return self

    def subscribe(self, *_: str) -> None:
        return None

    def get_message(self, timeout: float) -> dict[str, str]:
        return {"data": self.body}

    def set(self, *_: Any, **__: Any) -> None:
        raise ConnectionError("away")


@pytest.mark.parametrize(
    ("body", "stops"),
    [
        ('{"action":"SHUTDOWN"}', True),
        ('{"action":"SHUTDOWN","user_id":"u1"}', True),
        ('{"action":"RESTART","user_id":"u1"}', True),  # although its flag could not be written
        ('{"action":"SHUTDOWN","user_id":"u2"}', False),
        ('{"action":"SHUTDOWN","user_id":"u1","below_epoch":"1"}', False),
        ('{"action":"SING"}', False),
        ("not json", False),
        ("[]", False),
        ("7", False),
        ('{"action":"SHUTDOWN","below_epoch":"x"}', False),
    ],
)
def test_the_control_channel_stops_only_whom_it_means_and_survives_the_rest(
    wt: tuple[World, VirtualTime], body: str, stops: bool
) -> None:
    w, clock = wt
    worker = serving(w, clock)
    stopped: list[str] = []
    control = Control(BrokenClient(body), worker.given, stopped.append, worker.log.append)
    control.listen()
    control.wait(0.01)
    assert bool(stopped) == stops


def test_the_channel_is_heard_before_ready_and_of_a_session_that_takes_long_all_the_same(
    wt: tuple[World, VirtualTime],
) -> None:
    w, clock = wt
    worker = serving(w, clock)
    heard: list[str] = []
    control = Control(w.store.client, worker.given, heard.append, worker.log.append)

    def listeners() -> int:
        ((_, number),) = w.store.client.pubsub_numsub(keys.CONTROL)
        return int(number)

    control.wait(0.01)
    assert listeners() == 0, "nothing is asked of the store on a start's way"
    control.listen()
    assert listeners() == 1
    w.store.client.publish(keys.CONTROL, '{"action":"SHUTDOWN"}')
    control.wait(0.2)
    assert heard == ["SHUTDOWN"]
    slow = Control(w.store.client, worker.given, heard.append, worker.log.append)
    slow.wait(0.3)
    assert listeners() == 2, "the heart does not wait for the session for ever"
