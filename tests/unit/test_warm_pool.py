"""The pool manager: to the target and never over it, whatever the launches do."""

from __future__ import annotations

import fakeredis
import pytest

from muster import keys
from muster.errors import TryLater
from muster.launchers import fake
from muster.launchers.port import TaskKind
from muster.store import Store
from muster.warm_pool import MOST_LAUNCHES, manage, set_target, target_of, task_stopped
from tests.worlds import HandWorker, World, virtual_world, world
from worker.exits import Exit


@pytest.fixture
def w() -> World:
    return world(Store(fakeredis.FakeRedis(server=fakeredis.FakeServer(), decode_responses=True)))


def boot(w: World, task_id: str) -> HandWorker:
    launch = w.launcher.living()[task_id]
    worker = HandWorker(w.store, w.deps.clock, f"w-{task_id}", task_id, launch_id=launch.launch_id)
    return worker.start_in_pool()


def test_an_empty_pool_is_filled_once(w: World) -> None:
    assert manage(w.deps, 3, "r1").launched == 3
    assert all(launch.kind is TaskKind.POOL for launch in w.launcher.living().values())
    assert manage(w.deps, 3, "r2").launched == 0  # still booting, and counted
    for task_id in w.launcher.living():
        boot(w, task_id)
    full = manage(w.deps, 3, "r3")
    assert (full.idle, full.launched, len(w.launcher.living())) == (3, 0, 3)


def test_a_launch_that_fails_stops_the_run_and_the_next_one_makes_it_good(w: World) -> None:
    w.launcher.plan(fake.Plan(), fake.throttled())
    first = manage(w.deps, 4, "r1")
    assert (first.launched, first.trouble) == (1, "throttled: rate exceeded")
    assert manage(w.deps, 4, "r2").launched == 3
    assert len(w.launcher.living()) == 4


def test_the_worker_of_a_lost_answer_finds_no_place_and_leaves(w: World) -> None:
    w.launcher.plan(fake.lost())
    manage(w.deps, 1, "r1")
    (phantom,) = w.launcher.living()
    assert manage(w.deps, 1, "r2").launched == 1
    assert boot(w, phantom).exit is Exit.DONE
    (wanted,) = [task for task in w.launcher.living() if task != phantom]
    assert boot(w, wanted).exit is None


def test_a_launch_that_never_reports_is_stopped_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    w, clock = virtual_world(monkeypatch)
    w.launcher.plan(fake.never())
    manage(w.deps, 1, "r1")
    clock.advance(301)
    report = manage(w.deps, 1, "r2")
    assert (report.overdue, report.launched, len(w.launcher.living())) == (1, 1, 1)


def test_a_smaller_target_stops_the_surplus(w: World) -> None:
    manage(w.deps, 3, "r1")
    for task_id in list(w.launcher.living()):
        boot(w, task_id)
    assert manage(w.deps, 1, "r2").retired == 2
    assert len(w.launcher.living()) == 1


def test_a_new_version_replaces_every_worker(w: World) -> None:
    w.add_idle("old", version="v0")
    report = manage(w.deps, 1, "r1")
    assert (report.retired, report.launched) == (1, 1)


def test_a_task_that_cannot_be_stopped_now_is_out_of_the_pool_all_the_same(w: World) -> None:
    class NoStop(fake.FakeLauncher):
        def stop(self, task_id: str, reason: str) -> None:
            raise TryLater("throttled")

    w.add_idle("w1")
    object.__setattr__(w.deps, "launcher", NoStop(w.deps.clock))
    assert manage(w.deps, 0, "r1").retired == 1
    assert w.store.client.zcard(keys.pool_idle("default")) == 0


def test_one_run_does_not_eat_the_whole_call_budget(w: World) -> None:
    assert manage(w.deps, 200, "r1").launched == MOST_LAUNCHES
    assert manage(w.deps, 200, "r2").launched == MOST_LAUNCHES


def test_an_ended_pool_task_frees_its_place_at_once(w: World) -> None:
    manage(w.deps, 2, "r1")
    booting, idle = w.launcher.living()
    boot(w, idle)
    assert task_stopped(w.deps, booting)
    assert task_stopped(w.deps, idle)
    assert not task_stopped(w.deps, idle)  # the event comes twice
    assert not task_stopped(w.deps, "somebody-else")
    assert manage(w.deps, 2, "r2").launched == 2


def test_an_operators_target_wins_over_the_deployments(w: World) -> None:
    assert target_of(w.deps, 4) == 4
    set_target(w.deps, 0)
    assert target_of(w.deps, 4) == 0
