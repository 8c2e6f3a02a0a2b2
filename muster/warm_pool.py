"""The warm pool: count, fill, trim, replace old versions. It never holds more than its target.

`plan_pool` counts the living, reserves the missing places and takes the superfluous workers out, in one
atomic step; this module does what the plan says. A place is held by its launch id until the worker reports
or the deadline passes, so two managers, a slow launch or a lost answer cannot overshoot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from muster import blueprint, keys, steps
from muster.deps import Deps
from muster.errors import MusterError, TryLater
from muster.launchers.port import Launch, TaskKind
from muster.pool_target import Window, pool_target
from muster.store import command, fields

#: Most launches of one run: the rest comes with the next, so that a refill cannot eat the whole call budget.
MOST_LAUNCHES = 50


@dataclass(frozen=True, slots=True)
class PoolReport:
    """What a run of the manager found and did."""

    target: int
    idle: int
    launching: int
    outstanding: int
    launched: int
    retired: int
    overdue: int
    #: The first launch that failed, if any; its place is free for the next run.
    trouble: str = ""


def manage(deps: Deps, target: int, run_id: str) -> PoolReport:
    """Bring the pool to `target` workers of the current version. `run_id` must be new for every run."""
    plan = deps.store.one(steps.plan_pool(deps.pool, target, deps.version, run_id, MOST_LAUNCHES))
    for _, task_id in (*plan.retired, *plan.overdue):
        if task_id:
            _stop(deps, task_id, "the pool does not need this worker")
    launched, trouble, answers = 0, "", []
    for launch_id in plan.launch_ids:
        if trouble:
            answers.append(steps.bind_launch(deps.pool, launch_id, ""))
            continue
        try:
            task_id = deps.launcher.run(Launch(TaskKind.POOL, deps.pool, launch_id=launch_id))
        except MusterError as error:
            # The place is freed although a lost answer may still bring a worker: it would find no place
            # and leave again, which is better than a place held for a worker that never comes.
            trouble, task_id = str(error), ""
        else:
            launched += 1
        answers.append(steps.bind_launch(deps.pool, launch_id, task_id))
    deps.store.run(*answers)
    return PoolReport(
        target=target,
        idle=plan.idle,
        launching=plan.launching + launched,
        outstanding=plan.outstanding,
        launched=launched,
        retired=len(plan.retired),
        overdue=len(plan.overdue),
        trouble=trouble,
    )


def target_of(
    deps: Deps,
    default: int,
    *,
    adaptive: bool = False,
    cap: int = blueprint.POOL_CAP,
    windows: Sequence[Window] = (),
) -> int:
    """The target an operator has set, else the deployment's own, or what demand and calendar ask above it."""
    wanted, demand = deps.store.run(
        command("HGET", keys.pool_config(deps.pool), "wanted", parse=lambda reply: reply),
        command("ZRANGE", keys.pool_demand(deps.pool), 0, -1, "WITHSCORES", parse=_moments),
    )
    if wanted is not None:
        return int(wanted)
    now_ms = round(deps.clock.now() * 1000)
    return pool_target(
        demand, now_ms, floor=default, cap=max(default, cap), adaptive=adaptive, windows=windows
    )


def _moments(reply: Any) -> list[int]:
    """The scores of a range, whichever protocol version answered (pairs, or one flat list)."""
    flat = [part for entry in reply for part in (entry if isinstance(entry, (list, tuple)) else (entry,))]
    return [round(float(score)) for score in flat[1::2]]


def set_target(deps: Deps, target: int) -> None:
    """An operator's wish; kept until the next one."""
    deps.store.one(command("HSET", keys.pool_config(deps.pool), "wanted", target, parse=int))


def task_stopped(deps: Deps, task_id: str) -> bool:
    """A task ended, or must. If it was an idle or launching pool worker, free its place now; True if it was.

    False for one that has just left the pool with a claim: it serves a user by now.
    """
    tasks = deps.store.one(command("HGETALL", keys.pool_tasks(deps.pool), parse=fields))
    freed = False
    for member in [member for member, task in tasks.items() if task == task_id]:
        was_idle, was_launching, *_ = deps.store.run(
            command("ZREM", keys.pool_idle(deps.pool), member, parse=int),
            command("ZREM", keys.pool_launching(deps.pool), member, parse=int),
            steps.leave_pool(deps.pool, member),
        )
        freed = freed or bool(was_idle or was_launching)
    return freed


def _stop(deps: Deps, task_id: str, reason: str) -> None:
    try:
        deps.launcher.stop(task_id, reason)
    except TryLater:
        return  # it is out of the semaphore already; it leaves at its next beat, or the orphan check stops it
