"""The numbers of the system, and the relations between them that make it safe."""

from __future__ import annotations

from datetime import timedelta

from muster import blueprint as b

S = timedelta(seconds=1)


def test_the_queues_are_as_specified() -> None:
    rows = {
        q.name: (q.fifo, q.visibility, q.retention, q.group, q.dead_letter, q.max_receives) for q in b.QUEUES
    }
    day = timedelta(days=1)
    assert rows == {
        "worker-control.fifo": (True, 90 * S, day, "user_id", "worker-control-dlq.fifo", 3),
        "order-tasks.fifo": (True, 180 * S, day, "order_id", "order-tasks-dlq.fifo", 3),
        "pool-claim": (False, 10 * S, 300 * S, None, None, None),
        "worker-control-dlq.fifo": (True, 90 * S, 14 * day, None, None, None),
        "order-tasks-dlq.fifo": (True, 180 * S, 14 * day, None, None, None),
    }


def test_a_dead_letter_queue_comes_before_the_queue_that_points_at_it() -> None:
    seen: set[str] = set()
    for queue in b.QUEUES:
        assert queue.dead_letter is None or queue.dead_letter in seen
        seen.add(queue.name)


def test_the_functions_are_as_specified() -> None:
    rows = {f.name: (f.timeout, f.memory_mb, f.concurrency, f.max_concurrency, f.every) for f in b.FUNCTIONS}
    assert rows == {
        "worker_control": (60 * S, 256, 50, 500, None),
        "order_tasks": (120 * S, 256, 50, 500, None),
        "maintenance": (300 * S, 256, 1, 1, 60 * S),
        "maintenance_worker": (30 * S, 256, 100, 100, None),
        "pool_manager": (60 * S, 256, None, None, 300 * S),
    }


def test_a_worker_stops_acting_before_its_mark_can_be_gone() -> None:
    assert 2 * b.MARK_BEAT < b.STOP_ACTING_AFTER < b.EXIT_AFTER <= b.MARK_TTL


def test_a_record_fails_well_before_another_receiver_could_see_it() -> None:
    assert b.CALL_DEADLINE < b.FN_WORKER_CONTROL.timeout < b.WORKER_CONTROL.visibility
    assert b.WORKER_CONTROL.visibility > b.RETRY_VISIBILITY


def test_a_start_lease_covers_its_retry_and_a_claims_delivery() -> None:
    assert b.RETRY_VISIBILITY + b.CALL_DEADLINE <= b.START_LEASE
    assert b.RETRY_VISIBILITY_LATER + b.CALL_DEADLINE <= b.RESUMED_LEASE
    assert b.WORKER_CONTROL.visibility > b.RETRY_VISIBILITY_LATER
    assert b.CLAIM_DEADLINE == b.POOL_CLAIM.visibility < b.START_LEASE


def test_a_successor_is_more_patient_than_an_honest_predecessor_can_last() -> None:
    assert b.HELD_PATIENCE >= b.MARK_TTL + b.DRAIN_GRACE


def test_what_one_sweep_found_is_remembered_for_the_next() -> None:
    assert b.FN_MAINTENANCE.every is not None
    assert 2 * b.FN_MAINTENANCE.every < b.SWEEP_MEMORY


def test_a_coordinator_that_dies_holds_up_no_sweep_after_it() -> None:
    assert b.FN_MAINTENANCE.every is not None
    assert b.FN_MAINTENANCE.every > b.SWEEP_LEASE


def test_thirty_workers_fit_an_instance_by_cpu_and_by_memory() -> None:
    fleet = b.WORKERS
    by_cpu = fleet.instance.cpu_units // fleet.task.cpu_units
    by_memory = (fleet.instance.memory_mb - fleet.host_overhead_mb) // fleet.task.soft_memory_mb
    assert fleet.tasks_per_instance <= min(by_cpu, by_memory) == by_cpu == 32
