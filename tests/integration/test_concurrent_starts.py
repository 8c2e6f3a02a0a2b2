"""Two hundred start messages for one user at the same time, on threads, against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from local.valkey import EmbeddedValkey
from muster import keys, steps
from muster.blueprint import HISTORY_LENGTH
from muster.claims import Claim
from muster.clock import SystemClock
from muster.lifecycle import Outcome, apply
from muster.model import Assignment, Cause, Via
from muster.store import Store
from tests.worlds import HandWorker, World, command, pop_claim, world


@pytest.fixture
def w(valkey_server: EmbeddedValkey) -> Iterator[World]:
    client = valkey_server.client(max_connections=500)
    client.flushall()
    yield world(Store(client))
    client.close()


def all_at_once(w: World, commands: list[Any]) -> list[Any]:
    gate = threading.Barrier(len(commands))

    def one(cmd: Any) -> Any:
        gate.wait(30)
        return apply([cmd], w.deps)[0]

    with ThreadPoolExecutor(len(commands)) as threads:
        return list(threads.map(one, commands))


def test_200_starts_at_once_end_in_one_task_and_one_mark(w: World) -> None:
    results = all_at_once(w, [command("start") for _ in range(200)])
    assert results.count(Outcome.LAUNCHED) == 1
    assert set(results) <= {Outcome.LAUNCHED, Outcome.STARTING, Outcome.SUPERSEDED}
    (launch,) = w.launcher.living().values()
    assert len([call for call in w.launcher.calls if call.name == "run"]) == 1
    # and if the launcher had started it many times over: still one mark
    given = Assignment("u1", launch.epoch, Via.COLD, Cause.START, 1, "c")
    workers = [HandWorker(w.store, SystemClock(), f"w{n}") for n in range(50)]
    with ThreadPoolExecutor(50) as threads:
        list(threads.map(lambda worker: worker.start_cold(given), workers))
    assert sum(worker.lease.may_act() for worker in workers) == 1


def test_200_repeats_of_one_message_launch_one_task(w: World) -> None:
    start = command("start")
    results = all_at_once(w, [start] * 200)
    assert set(results) <= {Outcome.LAUNCHED, Outcome.STARTING}
    assert len(w.launcher.living()) == 1
    assert w.store.client.llen(keys.history("u1")) <= HISTORY_LENGTH


def test_200_starts_at_once_send_one_claim(w: World) -> None:
    for n in range(10):
        w.add_idle(f"w{n}")
    results = all_at_once(w, [command("start") for _ in range(200)])
    assert results.count(Outcome.CLAIMED) == 1
    assert w.store.client.llen(keys.pool_claims("default")) == 1
    assert w.launcher.calls == []


def test_fifty_users_at_once_share_ten_pool_workers_without_overbooking(w: World) -> None:
    for n in range(10):
        w.add_idle(f"w{n}")
    results = all_at_once(w, [command("start", f"u{n}") for n in range(50)])
    assert results.count(Outcome.CLAIMED) == 10
    assert results.count(Outcome.LAUNCHED) == 40
    claims = [Claim.from_json(d.body) for _ in range(10) if (d := pop_claim(w.store.client))]
    assert len({claim.user_id for claim in claims}) == 10


def test_starts_and_stops_at_once_leave_at_most_one_worker_that_may_act(w: World) -> None:
    """The newest command by its time decides, in whatever order they come in."""
    commands = [command("start" if n % 2 else "stop") for n in range(60)]
    all_at_once(w, commands)
    view = w.store.one(steps.read_user("u1"))
    newest = max(commands, key=lambda c: c.issued_at)
    assert (view.want, view.issued_at_ms) == ("running", newest.issued_at_ms)
    workers = []
    for task_id, launch in w.launcher.living().items():
        given = Assignment("u1", launch.epoch, Via.COLD, Cause.START, 1, "c")
        workers.append(HandWorker(w.store, SystemClock(), f"w-{task_id}", task_id).start_cold(given))
    assert sum(worker.lease.may_act() for worker in workers) <= 1
