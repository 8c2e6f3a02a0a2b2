"""The pool's semaphore, its launches and its versions, on every kind of store."""

from __future__ import annotations

from muster import keys, steps
from muster.store import Store


def beat(store: Store, worker: str, version: str = "v1", launch: str = "") -> str:
    return store.one(steps.pool_beat("p", worker, f"task-{worker}", version, launch, "h"))[0]


def plan(store: Store, target: int, run: str, version: str = "v1") -> steps.PoolPlan:
    return store.one(steps.plan_pool("p", target, version, run, 50))


def reserve(store: Store, claim: str, version: str = "v1", body: str = "") -> steps.Slot:
    return store.one(steps.reserve_slot("p", claim, version, body))


def test_no_more_claims_go_out_than_idle_workers_live(any_store: Store) -> None:
    beat(any_store, "w1")
    beat(any_store, "w2")
    assert [reserve(any_store, f"c{n}").reserved for n in range(3)] == [True, True, False]


def test_a_repeated_claim_takes_no_second_place_and_is_not_sent_twice(any_store: Store) -> None:
    beat(any_store, "w1")
    assert reserve(any_store, "c1", body="claim").reserved
    assert reserve(any_store, "c1", body="claim").reserved
    assert any_store.client.lrange(keys.pool_claims("p"), 0, -1) == ["claim"]


def test_only_workers_of_the_claims_version_count(any_store: Store) -> None:
    beat(any_store, "old", "v0")
    assert not reserve(any_store, "c1", "v1").reserved
    assert reserve(any_store, "c2", "v0").reserved


def test_a_worker_that_takes_a_claim_leaves_the_pool_with_it(any_store: Store) -> None:
    beat(any_store, "w1")
    reserve(any_store, "c1")
    assert any_store.one(steps.take_slot("p", "w1", "c1")) == ("left",)
    assert plan(any_store, 0, "r").idle == 0
    assert any_store.one(steps.take_slot("p", "w1", "c1")) == ("retired",)


def test_a_claim_that_could_not_be_sent_gives_its_place_back(any_store: Store) -> None:
    beat(any_store, "w1")
    reserve(any_store, "c1")
    any_store.one(steps.release_slot("p", "c1"))
    assert reserve(any_store, "c2").reserved


def test_launches_in_flight_are_counted_so_that_two_managers_do_not_overshoot(any_store: Store) -> None:
    assert len(plan(any_store, 3, "r1").launch_ids) == 3
    assert plan(any_store, 3, "r2").launch_ids == ()
    assert beat(any_store, "w1", launch="r1-1") == "idle"
    assert plan(any_store, 3, "r3").launch_ids == ()
    assert beat(any_store, "stranger") == "surplus"


def test_a_failed_launch_frees_its_place(any_store: Store) -> None:
    (launch,) = plan(any_store, 1, "r1").launch_ids
    any_store.one(steps.bind_launch("p", launch, ""))
    assert len(plan(any_store, 1, "r2").launch_ids) == 1


def test_a_launch_that_never_reports_is_handed_back_with_its_task(any_store: Store) -> None:
    (launch,) = plan(any_store, 1, "r1").launch_ids
    any_store.one(steps.bind_launch("p", launch, "task-9"))
    any_store.client.zadd(keys.pool_launching("p"), {launch: 1})
    second = plan(any_store, 1, "r2")
    assert second.overdue == ((launch, "task-9"),)
    assert len(second.launch_ids) == 1
    any_store.one(steps.pool_beat("p", "w2", "task-w2", "v1", second.launch_ids[0], "h"))
    assert beat(any_store, "late", launch=launch) == "surplus"


def test_old_versions_are_taken_out_and_replaced(any_store: Store) -> None:
    beat(any_store, "old", "v0")
    rolled = plan(any_store, 1, "r1", "v1")
    assert rolled.retired == (("old", "task-old"),)
    assert len(rolled.launch_ids) == 1
    assert beat(any_store, "old", "v0") == "outdated"


def test_a_shrunk_pool_lets_only_the_surplus_go_and_keeps_what_claims_need(any_store: Store) -> None:
    for n in range(4):
        beat(any_store, f"w{n}")
    reserve(any_store, "c1")
    trimmed = plan(any_store, 1, "r1")
    assert len(trimmed.retired) == 2
    assert trimmed.idle == 2  # one for the claim on its way, one for the target


def test_a_worker_that_stops_beating_is_not_counted(any_store: Store) -> None:
    beat(any_store, "w1")
    any_store.client.zadd(keys.pool_idle("p"), {"w1": 1})
    assert not reserve(any_store, "c1").reserved


def test_the_call_budget_keeps_a_share_for_those_who_matter_more(any_store: Store) -> None:
    from muster.blueprint import ECS_MUTATE

    def draw(floor: int) -> str:
        return any_store.one(steps.take_budget(ECS_MUTATE, 10, floor))[0]

    assert [draw(60) for _ in range(5)] == ["granted"] * 4 + ["wait"]
    assert [draw(30) for _ in range(4)] == ["granted"] * 3 + ["wait"]
    assert draw(0) == "granted"


def test_one_sweep_at_a_time_and_a_late_one_cannot_end_the_next(any_store: Store) -> None:
    assert any_store.one(steps.begin_sweep("a")) == ("begin", "")
    assert any_store.one(steps.begin_sweep("b")) == ("busy", "a")
    assert any_store.one(steps.end_sweep("b")) == ("not_running",)
    assert any_store.one(steps.end_sweep("a")) == ("ended",)
    assert any_store.one(steps.begin_sweep("b")) == ("begin", "a")
