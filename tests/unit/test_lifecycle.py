"""Start, stop and restart against every way a launch can go wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import fakeredis
import pytest

from muster import keys, steps
from muster.claims import Claim
from muster.commands import Command
from muster.errors import Refused, TryLater
from muster.launchers import fake
from muster.launchers.port import Launch, NewAttempt
from muster.lifecycle import Outcome, apply
from muster.model import Cause, Phase, Want
from muster.store import Store
from tests.worlds import CountingStore, HandWorker, World, command, pop_claim, virtual_world, world


@pytest.fixture
def w() -> World:
    return world(Store(fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)))


def runs(w: World) -> list[Launch]:
    return [call.launch for call in w.launcher.calls if call.name == "run" and call.launch]


def serve_claim(w: World, claim: Claim, worker: str = "w1") -> tuple[str, ...]:
    return w.store.one(steps.take_mark(claim.assignment(), worker, f"task-{worker}", "v1"))


def test_a_start_claims_a_pool_worker_and_launches_nothing(w: World) -> None:
    w.add_idle("w1")
    assert w.apply(command("start", credentials_ref="ref/u1")) == [Outcome.CLAIMED]
    claim = w.next_claim()
    assert (claim.user_id, claim.version, claim.credentials_ref) == ("u1", "v1", "ref/u1")
    assert w.launcher.calls == []
    assert serve_claim(w, claim) == ("taken",)
    assert w.apply(command("start")) == [Outcome.ACTIVE]


def test_a_start_without_a_pool_launches_and_binds_the_task(w: World) -> None:
    assert w.apply(command("start")) == [Outcome.LAUNCHED]
    view = w.user()
    assert view.lease is not None
    assert list(w.launcher.living()) == [view.lease.task_id] == [view.task_id]
    assert w.store.one(steps.owner_of(view.task_id)) == "u1"
    assert w.apply(command("start")) == [Outcome.STARTING]
    assert len(runs(w)) == 1


def test_only_workers_of_the_same_version_are_claimed(w: World) -> None:
    w.add_idle("w1", version="v0")
    assert w.apply(command("start")) == [Outcome.LAUNCHED]


@pytest.mark.parametrize("plan", [fake.throttled(), fake.no_capacity(), fake.lost(), fake.lost(30)])
def test_a_launch_that_went_wrong_comes_back_and_ends_in_one_task(w: World, plan: fake.Plan) -> None:
    w.launcher.plan(plan)
    start = command("start")
    (first,) = w.apply(start)
    assert isinstance(first, TryLater)
    assert w.user().phase is Phase.STARTING  # the wish is written down, whatever happens to the message
    assert w.apply(start) == [Outcome.LAUNCHED]
    assert len(w.launcher.living()) == 1
    assert len({launch.token for launch in runs(w)}) == 1


class Failing(fake.FakeLauncher):
    """Answers the first launches with `failures`, as ECS does; the task may exist all the same."""

    def __init__(self, clock: Any, errors: list[Exception], phantom: bool = False) -> None:
        super().__init__(clock)
        self.errors, self.phantom = errors, phantom

    def run(self, launch: Launch) -> str:
        if not self.errors:
            return super().run(launch)
        if self.phantom:
            super().run(launch)
        raise self.errors.pop(0)


def failing_world(w: World, *errors: Exception, phantom: bool = False) -> Failing:
    launcher = Failing(w.deps.clock, list(errors), phantom)
    object.__setattr__(w.deps, "launcher", launcher)
    return launcher


def test_failures_in_the_answer_try_again_under_a_new_token_and_the_same_epoch(w: World) -> None:
    launcher = failing_world(w, NewAttempt("RESOURCE:MEMORY"))
    start = command("start")
    (first,) = w.apply(start)
    assert isinstance(first, TryLater)
    assert w.user().reason == "RESOURCE:MEMORY"
    assert w.apply(start) == [Outcome.LAUNCHED]
    (launch,) = launcher.living().values()
    assert (launch.attempt, launch.epoch) == (1, w.user().epoch)


def test_a_phantom_of_a_failed_launch_and_its_repeat_give_one_mark(w: World) -> None:
    launcher = failing_world(w, NewAttempt("RESOURCE:MEMORY"), phantom=True)
    start = command("start")
    w.apply(start)
    assert w.apply(start) == [Outcome.LAUNCHED]
    assert len(launcher.living()) == 2
    claim = Claim("u1", w.user().epoch, "v1", start.issued_at_ms, start.command_id, "", "start")
    assert serve_claim(w, claim, "phantom") == ("taken",)
    assert serve_claim(w, claim, "repeat") == ("duplicate", "phantom")


def test_a_late_bind_does_not_write_its_task_over_the_one_that_holds_the_mark(w: World) -> None:
    start = command("start")
    w.apply(start)
    claim = Claim("u1", w.user().epoch, "v1", start.issued_at_ms, start.command_id, "", "start")
    serve_claim(w, claim, "quick")
    assert w.store.one(steps.bind_start("u1", claim.epoch, "task-late")) == ("taken",)
    assert w.user().task_id == "task-quick"


def test_what_can_never_be_launched_gives_its_lease_back_and_is_refused(w: World) -> None:
    failing_world(w, Refused("no such task definition"))
    (result,) = w.apply(command("start"))
    assert isinstance(result, Refused)
    view = w.user()
    assert (view.lease, view.reason, view.want) == (None, "no such task definition", Want.RUNNING)


def test_a_throttle_that_outlives_every_retry_still_ends_in_a_worker_by_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The message went to the dead-letter queue; the wish is in the store, and the lease has run out."""
    w, clock = virtual_world(monkeypatch)
    w.launcher.plan(*[fake.throttled()] * 3)
    start = command("start")
    assert all(isinstance(w.apply(start)[0], TryLater) for _ in range(3))
    clock.advance(61)
    w.sweep("s1")
    assert w.apply(*w.repairs()) == [Outcome.LAUNCHED]
    assert len(w.launcher.living()) == 1


def test_a_stop_while_the_claim_is_on_its_way_ends_with_no_worker(w: World) -> None:
    w.add_idle("w1")
    start = command("start")
    w.apply(start)
    claim = w.next_claim()
    assert w.apply(command("stop")) == [Outcome.STOPPED]
    assert serve_claim(w, claim)[0] == "stale"
    assert w.apply(start) == [Outcome.SUPERSEDED]  # redriven from the dead-letter queue
    assert w.user().phase is Phase.STOPPED


def test_a_stop_while_the_task_is_provisioning_stops_that_task(w: World) -> None:
    w.launcher.plan(fake.never())
    start = command("start")
    w.apply(start)
    epoch = w.user().epoch
    assert w.apply(command("stop")) == [Outcome.STOPPED]
    assert w.launcher.living() == {}
    claim = Claim("u1", epoch, "v1", start.issued_at_ms, start.command_id, "", "start")
    assert serve_claim(w, claim)[0] == "stale"
    assert w.apply(start) == [Outcome.SUPERSEDED]
    assert w.launcher.living() == {}


def test_a_stop_between_launch_and_bind_stops_the_task_nobody_knew_of(w: World) -> None:
    class StopInBetween(fake.FakeLauncher):
        def run(self, launch: Launch) -> str:
            task_id = super().run(launch)
            w.apply(command("stop"))
            return task_id

    launcher = StopInBetween(w.deps.clock)
    object.__setattr__(w.deps, "launcher", launcher)
    assert w.apply(command("start")) == [Outcome.SUPERSEDED]
    assert launcher.living() == {}
    assert w.user().want is Want.STOPPED


def test_an_overtaken_task_that_cannot_be_stopped_fails_nobody_elses_start(w: World) -> None:
    class NoStop(fake.FakeLauncher):
        def run(self, launch: Launch) -> str:
            if launch.owner == "u1":
                w.store.one(steps.begin_stop("u1", 2_000_000_000_000, "later"))
            return super().run(launch)

        def stop(self, task_id: str, reason: str) -> None:
            raise Refused("access denied")

    object.__setattr__(w.deps, "launcher", NoStop(w.deps.clock))
    results = w.apply(command("start", "u1"), command("start", "u2"))
    assert results == [Outcome.SUPERSEDED, Outcome.LAUNCHED]


def test_a_repeated_stop_asks_again_for_what_could_not_be_stopped(w: World) -> None:
    class OnceThrottled(fake.FakeLauncher):
        throttle = True

        def stop(self, task_id: str, reason: str) -> None:
            if self.throttle:
                self.throttle = False
                raise TryLater("throttled")
            super().stop(task_id, reason)

    launcher = OnceThrottled(w.deps.clock)
    object.__setattr__(w.deps, "launcher", launcher)
    w.apply(command("start"))
    stop = command("stop")
    assert isinstance(w.apply(stop)[0], TryLater)
    assert w.apply(stop) == [Outcome.STOPPED]
    assert launcher.living() == {}


def test_a_restart_fences_the_live_worker_and_its_successor_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    w, clock = virtual_world(monkeypatch)
    old, new = (HandWorker(w.store, clock, name) for name in ("w1", "w2"))
    old.start_in_pool()
    w.apply(command("start"))
    old.step(lambda: pop_claim(w.store.client))
    new.start_in_pool()
    assert w.apply(command("restart")) == [Outcome.CLAIMED]
    new.step(lambda: pop_claim(w.store.client))
    assert not new.lease.may_act()
    old.step(lambda: None)
    assert old.exit is not None
    new.step(lambda: None)
    assert new.lease.may_act()
    assert w.user().failures == 0


def test_the_wait_for_a_frozen_predecessor_is_not_taken_for_a_lost_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frozen worker keeps its mark for 30 s, longer than a start lease lasts."""
    w, clock = virtual_world(monkeypatch)
    frozen, new = (HandWorker(w.store, clock, name) for name in ("w1", "w2"))
    frozen.start_in_pool()
    w.apply(command("start"))
    frozen.step(lambda: pop_claim(w.store.client))
    new.start_in_pool()
    w.apply(command("restart"))
    new.step(lambda: pop_claim(w.store.client))
    for _ in range(29):
        clock.advance(1)
        new.step(lambda: None)
    w.sweep("s1")
    assert w.repairs() == []
    clock.advance(2)
    new.step(lambda: None)
    assert new.lease.may_act()
    clock.advance(10)
    frozen.step(lambda: None)
    assert frozen.exit is not None


def test_a_users_commands_of_one_batch_are_done_in_order(w: World) -> None:
    batch = [command("start"), command("stop"), command("start"), command("start", "u2")]
    assert w.apply(*batch) == [Outcome.LAUNCHED, Outcome.STOPPED, Outcome.LAUNCHED, Outcome.LAUNCHED]
    assert sorted(launch.owner for launch in w.launcher.living().values()) == ["u1", "u2"]


def test_after_a_failure_only_that_users_later_commands_wait(w: World) -> None:
    w.launcher.plan(fake.throttled())
    results = w.apply(command("start", "u1"), command("start", "u2"), command("stop", "u1"))
    assert isinstance(results[0], TryLater)
    assert results[1] is Outcome.LAUNCHED
    assert isinstance(results[2], TryLater)
    assert w.user("u1").want is Want.RUNNING


def test_a_store_that_is_away_fails_every_command_and_loses_none(w: World) -> None:
    w.store.client.connection_pool.connection_kwargs["server"].connected = False
    batch = [command("start", "u1"), command("stop", "u2")]
    assert all(isinstance(result, TryLater) for result in w.apply(*batch))
    w.store.client.connection_pool.connection_kwargs["server"].connected = True
    assert w.apply(*batch) == [Outcome.LAUNCHED, Outcome.STOPPED]


def test_a_repair_is_launched_on_what_people_leave_and_waits_where_they_leave_nothing(w: World) -> None:
    """Of one batch: the repair draws on the budget, the start beside it does not."""
    w.apply(command("start", "u1"))
    lost = w.user("u1")
    assert lost.lease is not None
    w.store.client.delete(keys.starting("u1"))
    repairs = fake.FakeLauncher(w.deps.clock)
    repairs.plan(fake.throttled())
    deps = dataclasses.replace(w.deps, repairs=repairs)
    repair = command("restart", "u1", seen_epoch=lost.epoch, cause=Cause.REPAIR)
    waits, started = apply([repair, command("start", "u2")], deps)
    assert isinstance(waits, TryLater)
    assert started == Outcome.LAUNCHED
    assert apply([repair], deps) == [Outcome.LAUNCHED]
    assert [call.launch.owner for call in repairs.calls if call.launch] == ["u1", "u1"]
    assert [launch.owner for launch in runs(w)] == ["u1", "u2"]


def test_a_repair_starts_once_and_counts_as_a_failure(w: World) -> None:
    w.apply(command("start"))
    w.store.client.delete(keys.starting("u1"))
    repair = command("restart", seen_epoch=w.user().epoch, cause=Cause.REPAIR)
    again = command("restart", seen_epoch=w.user().epoch, cause=Cause.REPAIR)
    assert w.apply(repair) == [Outcome.LAUNCHED]
    assert w.apply(again) == [Outcome.MOVED]
    assert w.user().failures == 1


class CountedSqs:
    """Counts calls; takes everything."""

    def __init__(self) -> None:
        self.calls = 0

    def send_message_batch(self, **_: Any) -> dict[str, Any]:
        self.calls += 1
        return {}


def costs(store: CountingStore, w: World, commands: Sequence[Command], expected: Outcome) -> int:
    before = store.round_trips
    assert apply(commands, w.deps) == [expected] * len(commands)
    return store.round_trips - before


@pytest.mark.parametrize("channel", ["valkey", "sqs"])
@pytest.mark.parametrize("users", [1, 10])
def test_a_start_costs_at_most_three_round_trips_and_one_aws_call(channel: str, users: int) -> None:
    from muster.claims import SqsChannel

    sqs = CountedSqs()
    store = CountingStore(fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True))
    w = world(store, channel=SqsChannel(sqs, "q") if channel == "sqs" else None)
    store.client.hset(keys.pool_config("default"), mapping={"target": 4, "version": "v1"})
    w.apply(
        command("start", "first"), command("stop", "first"), command("start", "first")
    )  # loads the scripts
    w.launcher.calls.clear()

    cold = [command("start", f"cold-{n}") for n in range(users)]
    assert costs(store, w, cold, Outcome.LAUNCHED) <= 3
    assert [call.name for call in w.launcher.calls] == ["run"] * users
    assert (w.woken, sqs.calls) == ([], 0)  # an empty pool has been seen to already; nobody is woken again

    store.client.hset(keys.pool_config("default"), "target", 40)
    for n in range(40):
        w.add_idle(f"w{n}")
    w.launcher.calls.clear()
    warm = [command("start", f"warm-{n}") for n in range(users)]
    assert costs(store, w, warm, Outcome.CLAIMED) <= 2
    assert (w.launcher.calls, w.woken) == ([], [])
    assert sqs.calls == (1 if channel == "sqs" else 0)


def test_only_the_claim_that_takes_the_pool_below_half_wakes_the_manager(w: World) -> None:
    w.store.client.hset(keys.pool_config("default"), mapping={"target": 4, "version": "v1"})
    for n in range(4):
        w.add_idle(f"w{n}")
    woken = []
    for n in range(6):
        w.apply(command("start", f"u{n}"))
        woken.append(len(w.woken))
    assert woken == [0, 0, 1, 1, 1, 1]


def test_a_claim_the_channel_did_not_take_becomes_a_launch() -> None:
    class Broken:
        sends_with_reservation = False

        def send(self, claims: Sequence[Claim]) -> list[Claim]:
            return list(claims)

    store = Store(fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True))
    w = world(store, channel=Broken())
    w.add_idle("w1")
    assert w.apply(command("start")) == [Outcome.LAUNCHED]
    assert store.client.zcard(keys.pool_outstanding("default")) == 0
