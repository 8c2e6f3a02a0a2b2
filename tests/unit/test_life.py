"""One worker's life: claims that come twice, late, to the wrong version, or to a worker on its way out."""

from __future__ import annotations

from typing import Any

import pytest

from muster import keys, steps
from muster.blueprint import HELD_PATIENCE, HELD_RETRY, POOL_BEAT
from muster.claims import Claim, Delivery
from muster.errors import TryLater
from muster.lifecycle import Outcome
from muster.model import Assignment, Cause, Via
from muster.store import Step
from muster.warm_pool import manage
from tests.worlds import HandWorker, VirtualTime, World, command, pop_claim, virtual_world
from worker.exits import Exit
from worker.life import AwaitClaim, Pause


@pytest.fixture
def wt(monkeypatch: pytest.MonkeyPatch) -> tuple[World, VirtualTime]:
    return virtual_world(monkeypatch)


class Receipt:
    """A delivery whose fate can be asked for."""

    def __init__(self, body: str) -> None:
        self.fate = "in hand"
        self.delivery = Delivery(body, lambda: self.settle("done"), lambda: self.settle("given back"))

    def settle(self, fate: str) -> None:
        self.fate = fate


def start_and_pop(w: World, *, action: str = "start") -> Claim:
    assert w.apply(command(action)) == [Outcome.CLAIMED]
    delivery = pop_claim(w.store.client)
    assert delivery is not None
    return Claim.from_json(delivery.body)


def pool_worker(w: World, clock: VirtualTime, name: str, version: str = "v1") -> HandWorker:
    return HandWorker(w.store, clock, name, version=version).start_in_pool()


def test_a_claim_makes_a_pool_worker_its_users(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = pool_worker(w, clock, "w1")
    assert worker.effect == AwaitClaim(POOL_BEAT.total_seconds())
    receipt = Receipt(start_and_pop(w).to_json())
    worker.go_on(receipt.delivery)
    assert worker.given.user == "u1"
    assert worker.lease.may_act()
    assert receipt.fate == "done"
    assert w.store.client.zcard(keys.pool_idle("default")) == 0
    assert w.store.client.zcard(keys.pool_outstanding("default")) == 0


def test_a_claim_delivered_twice_gives_one_mark_and_the_other_goes_back_to_wait(
    wt: tuple[World, VirtualTime],
) -> None:
    w, clock = wt
    first, second = pool_worker(w, clock, "w1"), pool_worker(w, clock, "w2")
    claim = start_and_pop(w)
    first.go_on(Receipt(claim.to_json()).delivery)
    repeat = Receipt(claim.to_json())
    second.go_on(repeat.delivery)
    assert repeat.fate == "done"
    assert isinstance(second.effect, AwaitClaim)
    assert not second.lease.may_act()
    mark = w.user().mark
    assert mark is not None
    assert mark.worker_id == "w1"


def test_a_claim_after_its_lease_still_serves_if_nobody_else_does(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = pool_worker(w, clock, "w1")
    claim = start_and_pop(w)
    clock.advance(25)
    worker.go_on(Receipt(claim.to_json()).delivery)
    assert worker.lease.may_act()


def test_a_claim_after_a_repair_is_stale_and_the_repair_serves(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    late = pool_worker(w, clock, "late")
    claim = start_and_pop(w)
    clock.advance(21)
    w.sweep("s1")
    quick = pool_worker(w, clock, "quick")
    assert w.apply(*w.repairs()) == [Outcome.CLAIMED]
    quick.go_on(pop_claim(w.store.client))
    assert quick.lease.may_act()
    old = Receipt(claim.to_json())
    late.go_on(old.delivery)
    assert old.fate == "done"
    assert not late.lease.may_act()
    assert w.user().failures == 1


def test_an_outdated_worker_gives_the_claim_back_and_exits(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    old = pool_worker(w, clock, "old", "v0")
    new = pool_worker(w, clock, "new", "v1")
    w.store.client.hset(keys.pool_config("default"), mapping={"target": 1, "version": "v1"})
    receipt = Receipt(start_and_pop(w).to_json())
    old.go_on(receipt.delivery)
    assert (old.exit, receipt.fate) == (Exit.DONE, "given back")
    assert w.user().mark is None
    new.go_on(receipt.delivery)
    assert new.lease.may_act()


def test_a_claim_of_an_old_version_does_not_end_the_new_workers(wt: tuple[World, VirtualTime]) -> None:
    """On the Valkey list it would stay for ever, and every new worker in turn would leave over it."""
    w, clock = wt
    claim = Claim("u1", 1, "v0", 1, "c", "", "start")
    manage(w.deps, 1, "r1")
    (launch,) = w.launcher.living().values()
    new = HandWorker(w.store, clock, "new", launch_id=launch.launch_id).start_in_pool()
    receipt = Receipt(claim.to_json())
    new.go_on(receipt.delivery)
    assert (new.exit, receipt.fate) == (None, "done")
    assert isinstance(new.effect, AwaitClaim)


def test_a_worker_the_manager_has_let_go_gives_the_claim_back(wt: tuple[World, VirtualTime]) -> None:
    """It would take the mark a moment before the manager's SIGTERM reaches it."""
    w, clock = wt
    worker = pool_worker(w, clock, "w1")
    receipt = Receipt(start_and_pop(w).to_json())
    assert w.store.one(steps.plan_pool("default", 0, "v1", "r1", 50)).retired == ()  # kept for the claim
    w.store.one(steps.leave_pool("default", "w1"))
    worker.go_on(receipt.delivery)
    assert (worker.exit, receipt.fate) == (Exit.DONE, "given back")
    assert w.user().mark is None


def test_a_worker_told_to_stop_gives_back_what_it_has_not_taken(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = pool_worker(w, clock, "w1")
    receipt = Receipt(start_and_pop(w).to_json())
    worker.told_to_stop = True
    worker.go_on(receipt.delivery)
    assert (worker.exit, receipt.fate) == (Exit.DONE, "given back")


def test_a_worker_told_to_stop_while_it_waits_for_its_predecessor_gives_the_claim_back(
    wt: tuple[World, VirtualTime],
) -> None:
    w, clock = wt
    pool_worker(w, clock, "w1").go_on(Receipt(start_and_pop(w).to_json()).delivery)
    second = pool_worker(w, clock, "w2")
    receipt = Receipt(start_and_pop(w, action="restart").to_json())
    second.go_on(receipt.delivery)
    assert second.effect == Pause(HELD_RETRY.total_seconds())
    second.told_to_stop = True
    second.go_on()
    assert (second.exit, receipt.fate) == (Exit.DONE, "given back")


def test_a_claim_is_given_back_by_a_worker_that_cannot_reach_the_store(
    wt: tuple[World, VirtualTime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 197: cut off between leaving the pool and the mark, it deleted a claim nobody served."""
    w, clock = wt
    worker = pool_worker(w, clock, "w1")
    receipt = Receipt(start_and_pop(w).to_json())
    real = w.store.one

    def cut_off(step: Step[Any]) -> Any:
        if step.script is not None and step.script.stem == "take_mark":
            raise TryLater("Valkey is away")
        return real(step)

    monkeypatch.setattr(w.store, "one", cut_off)
    worker.go_on(receipt.delivery)
    while not isinstance(worker.effect, AwaitClaim):
        assert receipt.fate == "in hand"
        clock.advance(1)
        worker.go_on()
    assert receipt.fate == "given back"
    assert worker.exit is None


@pytest.mark.parametrize(
    "body",
    ["", "[]", "null", "{}", '{"action":"claim","v":2}', '{"action":"start","v":1}', "x" * 10_000, "\x00",
     '{"action":"claim","v":1,"user_id":"u1","epoch":"x","version":"v1","issued_at":1,"command_id":"c",'
     '"credentials_ref":"","cause":"start"}'],
)  # fmt: skip
def test_what_is_no_claim_is_settled_and_the_worker_stays(body: str, wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = pool_worker(w, clock, "w1")
    receipt = Receipt(body)
    worker.go_on(receipt.delivery)
    assert receipt.fate == "done"
    assert isinstance(worker.effect, AwaitClaim)


def test_a_channel_that_is_away_only_delays(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = pool_worker(w, clock, "w1")
    worker.go_on(error=TryLater("SQS is away"))
    assert worker.effect == Pause(1.0)
    worker.go_on()
    assert isinstance(worker.effect, AwaitClaim)


def test_a_store_that_is_away_during_a_claim_costs_the_pool_no_ghost(wt: tuple[World, VirtualTime]) -> None:
    """The worker must leave the semaphore even if the first try did not reach the store."""
    w, clock = wt
    worker = pool_worker(w, clock, "w1")
    receipt = Receipt(start_and_pop(w).to_json())
    server = w.store.client.connection_pool.connection_kwargs["server"]
    server.connected = False
    worker.go_on(receipt.delivery)
    assert worker.effect == Pause(1.0)
    server.connected = True
    worker.go_on()
    assert worker.lease.may_act()
    assert w.store.client.zcard(keys.pool_idle("default")) == 0


def cold(w: World) -> Assignment:
    start = command("start")
    assert w.apply(start) == [Outcome.LAUNCHED]
    return Assignment("u1", w.user().epoch, Via.COLD, Cause.START, start.issued_at_ms, start.command_id)


def test_a_cold_worker_takes_the_mark_it_was_launched_for(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = HandWorker(w.store, clock, "w1").start_cold(cold(w))
    assert worker.lease.may_act()


def test_a_cold_worker_overtaken_by_a_stop_exits_as_stale(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    given = cold(w)
    w.apply(command("stop"))
    assert HandWorker(w.store, clock, "w1").start_cold(given).exit is Exit.STALE


def test_a_successor_gives_up_when_no_honest_predecessor_could_still_hold_on(
    wt: tuple[World, VirtualTime],
) -> None:
    w, clock = wt
    old = HandWorker(w.store, clock, "old").start_cold(cold(w))
    w.apply(command("restart"))
    given = Assignment("u1", w.user().epoch, Via.COLD, Cause.RESTART, 1, "c")
    successor = HandWorker(w.store, clock, "new").start_cold(given)
    waited = 0
    while successor.exit is None:
        assert waited <= HELD_PATIENCE.total_seconds() + 11
        w.store.client.persist(keys.active("u1"))  # a predecessor that is not honest
        clock.advance(10)
        waited += 10
        successor.go_on()
    assert successor.exit is Exit.STALE
    assert old.exit is None


def test_a_cold_worker_told_to_stop_while_it_waits_is_not_called_stale(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    HandWorker(w.store, clock, "old").start_cold(cold(w))
    w.apply(command("restart"))
    given = Assignment("u1", w.user().epoch, Via.COLD, Cause.RESTART, 1, "c")
    successor = HandWorker(w.store, clock, "new").start_cold(given)
    successor.told_to_stop = True
    assert successor.go_on().exit is Exit.DONE


def test_a_surplus_worker_leaves_the_pool(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    w.store.client.hset(keys.pool_config("default"), mapping={"target": 0, "version": "v1"})
    assert pool_worker(w, clock, "w1").exit is Exit.DONE


def test_an_outdated_worker_does_not_join(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    w.store.client.hset(keys.pool_config("default"), mapping={"target": 9, "version": "v2"})
    assert pool_worker(w, clock, "w1").exit is Exit.DONE


def test_a_pool_worker_told_to_stop_leaves_at_once(wt: tuple[World, VirtualTime]) -> None:
    w, clock = wt
    worker = pool_worker(w, clock, "w1")
    worker.told_to_stop = True
    assert worker.go_on().exit is Exit.DONE
    assert w.store.client.zcard(keys.pool_idle("default")) == 0
