"""Bugs that systems of this kind have had, each as a scenario that this one must survive."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from muster.blueprint import EXIT_AFTER, MARK_TTL
from muster.maintenance import Batch
from sim.audit import view_of
from sim.ecs_world import SIM_MUTATE, SIM_READ, SimTask
from sim.install import installed
from sim.plan import START, Fault, Plan, Wish
from sim.workers import SimWorker
from sim.world import World
from tests.simulation.histories import alive, calls, live, served


@pytest.mark.parametrize("on_valkey", [False, True])
def test_one_claim_delivered_twice_gets_one_worker(on_valkey: bool) -> None:
    """gh agent-sandbox#418."""
    twice = (Fault(1.0, "claim_duplicate"), Fault(1.0, "sqs_duplicate"))
    world = live(*twice, pool=3, on_valkey=on_valkey)
    assert len(served(world)) == 1
    assert world.faults["sqs duplicate"] == world.faults["claim twice"] == 1


#: The effects of a warm start, without those whose answer is only that the server does not know a script yet.
_ANSWERS = [
    *(
        ("worker_control", effect, name)
        for effect, name in ((0, "begin_start"), (3, "reserve_slot"), (4, "send"))
    ),
    *(
        ("worker", effect, name)
        for effect, name in ((0, "receive"), (4, "take_slot"), (7, "take_mark"), (8, "delete"))
    ),
]


@pytest.mark.parametrize(("target", "effect", "name"), _ANSWERS)
def test_an_allocation_whose_answer_was_lost_is_not_held_for_ever(
    target: str, effect: int, name: str
) -> None:
    """gh agones#607: any answer on the way of a warm start is lost; the pool is full again."""
    world = live(Fault(9.0, "answer_lost", target, skip=effect), pool=2)
    assert [name in line for line in world.lines or () if line.endswith(" answer_lost")] == [True]
    assert view_of(world, "u0").live_mark is not None


def test_a_live_worker_is_not_killed_as_an_orphan() -> None:
    """gh terraform-aws-github-runner#4391, #167: sweeps cut short, stale lists, blind descriptions."""
    world = live(
        *(Fault(at, "crash_before", "maintenance_worker", skip=1) for at in (30.0, 90.0, 150.0)),
        Fault(20.0, "stale", amount=60.0),
        Fault(40.0, "blind", amount=200.0),
        Fault(60.0, "invoke_twice", "maintenance"),
    )
    assert len(served(world)) == 1
    assert alive(served(world)[0])
    assert calls(world, "StopTask") == 0


@pytest.mark.parametrize(
    "fault",
    [
        Fault(9.0, "store_away", amount=20.0),
        Fault(9.0, "throttled", amount=40.0),
        Fault(9.0, "sqs_away", amount=30.0),
        Fault(9.0, "crash_after", "worker_control", skip=0),
        Fault(9.0, "launch", "answer_lost"),
        Fault(9.0, "launch", "failures", 1.0),
        Fault(9.0, "launch", "fail"),
    ],
    ids=str,
)
def test_no_start_is_lost(fault: Fault) -> None:
    """gh terraform-aws-github-runner#5105: nine percent of a week's starts."""
    for pool in (0, 2):
        world = live(fault, pool=pool)
        assert view_of(world, "u0").live_mark is not None


def _old_version(world: World) -> None:
    """Every pool worker is of another version than the one wanted."""
    start = world.start_worker

    def start_old(task: SimTask) -> SimWorker:
        worker = start(task)
        if "MUSTER_LAUNCH_ID" in worker.task.environ:
            worker.version = "v0"
        return worker

    world.start_worker = start_old  # type: ignore[method-assign]


def test_a_pool_that_can_take_no_claim_gets_none() -> None:
    """gh OpenHands-Cloud#866: workers of the wrong version wait for ever and nobody notices. Here they leave,
    the user is served by a cold start, and the pool's emptiness is seen."""

    plan = Plan(1, False, False, 1, 2, 120.0, (Wish(10.0, "start", "u0"),), ())
    with installed():
        world = World(plan, keep_trace=True)
        _old_version(world)
        world.run()
    assert world.violation is not None
    assert world.violation.what == "the pool has 0 of 2 workers"
    assert len(served(world)) == 1
    assert not any("reserved" in line for line in world.lines or ())


#: A storm of repairs may take this share of what the buckets of the ECS API give meanwhile.
ROOM = 0.05


def _shares(world: World, since: float) -> dict[str, float]:
    """What part of each bucket's calls (its burst, and its rate for that long) was made since then, by
    anybody: a repair's launch is made by the function that starts what people want."""
    seconds = world.loop.now - START - since
    assert 0 < seconds < 5000, "seconds of this history, not of the calendar"
    shares = {}
    for bucket, names in (
        (SIM_MUTATE, ("RunTask", "StopTask")),
        (SIM_READ, ("DescribeTasks", "ListTasks")),
    ):
        made = sum(name in names and at - START > since for at, name, _ in world.ecs.calls)
        shares[bucket.name] = made / (bucket.burst + bucket.per_second * seconds)
    return shares


_STORM = Plan(
    1,
    lossy=False,
    claims_on_valkey=False,
    users=6,
    pool_target=3,
    duration=300.0,
    wishes=(*(Wish(5.0 + n, "start", f"u{n}") for n in range(6)), Wish(90.0, "restart", "u0")),
    faults=(Fault(60.0, "zone_silent"), Fault(61.0, "throttled", amount=60.0)),
)


def test_a_storm_of_repairs_leaves_room_for_starts() -> None:
    """gh agent-sandbox#1735: a reaper that feeds itself held 84 % of the quota."""
    with installed():
        world = World(_STORM)
        world.run()
    assert world.violation is None
    assert max(_shares(world, since=60.0).values()) < ROOM


def test_a_sweep_that_calls_the_next_one_would_be_seen() -> None:
    """The scenario above with a reaper that feeds itself: the bound can be missed."""
    with installed():
        world = World(_STORM)
        invoke = world.functions.invoke_batches

        def invoke_and_sweep_again(batches: Sequence[Batch]) -> None:
            invoke(batches)
            world.loop.after(1.0, lambda: world.functions.invoke("maintenance", {"source": "aws.events"}))

        world.functions.invoke_batches = invoke_and_sweep_again  # type: ignore[method-assign]
        world.run()
    assert _shares(world, since=60.0)[SIM_READ.name] > ROOM


def test_a_pool_that_replaces_what_it_has_just_launched_would_be_seen() -> None:
    """The same for the other bucket: every worker comes with a version that the manager takes for old."""
    with installed():
        world = World(_STORM)
        _old_version(world)

        def refill() -> None:
            world.functions.invoke("pool_manager", {"source": "aws.events"})
            world.loop.after(2.0, refill)

        world.loop.after(60.0, refill)
        world.run()
    assert _shares(world, since=60.0)[SIM_MUTATE.name] > ROOM


def test_two_refills_at_once_do_not_launch_twice() -> None:
    """gh keda#7330: stale counts. Two managers run while the first one's launches are slow to report."""
    slow = [Fault(0.1, "launch", "slow", 100.0)] * 3
    world = live(Fault(0.0, "invoke_twice", "pool_manager"), *slow, pool=3)
    assert calls(world, "RunTask") == 3 + 1


def test_a_new_version_replaces_idle_workers_and_no_serving_one() -> None:
    """gh keda#6440: an update that kills running work."""

    def deploy(world: World) -> None:
        def release() -> None:
            world.version = "v2"

        world.loop.after(100.0, release)

    world = live(pool=2, tweak=deploy, duration=700.0)
    assert len(served(world)) == 1
    assert served(world)[0].version == "v1"
    idle = [w for w in world.workers.values() if alive(w) and w.given is None]
    assert [w.version for w in idle] == ["v2", "v2"]


def test_blocked_work_does_not_lose_the_mark() -> None:
    """gh bullmq#3183: two minutes of work that yields to nobody."""
    world = live(tweak=lambda world: world.session_trouble.append("blocks"))
    assert len(served(world)) == 1
    assert not any("'fenced'" in line or "'lost'" in line for line in world.lines or ())


def test_a_worker_that_is_away_for_less_than_its_lease_is_not_replaced() -> None:
    """gh prefect#16459: a live run declared dead."""
    assert EXIT_AFTER <= MARK_TTL
    world = live(Fault(40.0, "cut_off", amount=18.0), Fault(90.0, "freeze", amount=18.0))
    assert len(served(world)) == 1
    assert alive(served(world)[0])


#: A cold start is seven effects; the third only answers that the server does not know a script yet.
_CRASHES = [("crash_before", effect) for effect in range(7)] + [
    ("crash_after", effect) for effect in (0, 1, 3, 4, 5, 6)
]


@pytest.mark.parametrize(("mode", "effect"), _CRASHES)
def test_a_crash_between_any_two_effects_of_a_start_loses_nothing(mode: str, effect: int) -> None:
    """gh prefect#20485: PENDING was written, RunTask was not called."""
    world = live(Fault(9.0, mode, "worker_control", skip=effect))
    assert any(line.endswith(" crashed") for line in world.lines or ())
    assert view_of(world, "u0").live_mark is not None


def test_blindness_kills_nobody_and_ends() -> None:
    """gh prefect#18584: DescribeTasks is throttled while a worker dies without an event."""
    world = live(
        Fault(40.0, "blind", amount=240.0),
        Fault(50.0, "event", "lost"),
        Fault(51.0, "oom"),
    )
    assert len(served(world)) == 2
    assert calls(world, "StopTask") == 0
