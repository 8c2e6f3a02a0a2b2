"""The sweep: all users and all tasks, looked at once a minute, so that nothing depends on an event arriving.

The coordinator cuts the index into batches; a batch reads its users in a few round trips, asks the launcher
only about those without a mark, and acts on `reconcile`. The other direction (tasks without owners) works by
elimination: the coordinator lists all tasks, every batch takes out the ones its users know, and what is left
of two whole sweeps is an orphan. All calls to AWS grow with failures plus one listing, not with users.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, TypeVar

from muster import blueprint, keys, steps, warm_pool
from muster.commands import Action as CommandAction
from muster.commands import Command, from_ms
from muster.deps import Deps
from muster.errors import TryLater
from muster.launchers.port import TaskKind, TaskStatus, TaskView
from muster.model import Cause, Phase, UserView, Want
from muster.reconcile import (
    Action,
    Forget,
    Restart,
    Seen,
    SeenTask,
    StopTask,
    Wait,
    braked,
    judge_task,
    reconcile,
)
from muster.steps import ms
from muster.store import Step, command, fields, tagged, text
from muster.turn import Turn

T = TypeVar("T")

#: Users read in one round trip, and words given to one command: enough to make trips rare, few enough that
#: no other client waits long behind them.
_READ_CHUNK = 500
_WORDS = 1000
_MEMORY_S = round(blueprint.SWEEP_MEMORY.total_seconds())


@dataclass(frozen=True, slots=True)
class Batch:
    """A share of a sweep: these buckets of the index."""

    run_id: str
    number: int
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What the coordinator found. `busy` names the run that was still going, if one was."""

    run_id: str
    users: int = 0
    batches: int = 0
    orphans_stopped: int = 0
    suspects: int = 0
    busy: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class BatchReport:
    """What became of one batch."""

    users: int = 0
    restarts: int = 0
    stopped: int = 0
    forgotten: int = 0
    given_up: int = 0
    unaccounted: int = 0
    brake: bool = False
    phases: dict[str, int] = field(default_factory=dict)


def sweep(deps: Deps, run_id: str, invoke: Callable[[Sequence[Batch]], None]) -> SweepReport:
    """Run one sweep: list, cut into batches, `invoke` them (asynchronously, in parallel), judge suspects."""
    began = deps.clock.monotonic()
    tag, other = deps.store.one(steps.begin_sweep(run_id))
    if tag == "busy":
        return SweepReport(run_id, busy=other)
    try:
        sizes = deps.store.run(
            *(command("SCARD", keys.index(bucket), parse=int) for bucket in range(blueprint.INDEX_BUCKETS))
        )
        batches, turn = cut_into_batches(run_id, sizes), Turn(deps, run_id)
        listed = _list_tasks(deps, run_id, len(batches), turn)
        for batch in turn.over(batches):
            invoke([batch])
        stopped, suspects = _judge_leftovers(deps, other, turn) if listed and other else (0, 0)
    finally:
        # Also after an error: whoever sweeps next need not wait for the lease.
        deps.store.one(steps.end_sweep(run_id))
    seconds = deps.clock.monotonic() - began
    return SweepReport(run_id, sum(sizes), len(batches), stopped, suspects, seconds=seconds)


def cut_into_batches(run_id: str, sizes: Sequence[int]) -> list[Batch]:
    """Whole buckets, together at most `SWEEP_BATCH_USERS` users (a larger bucket is a batch of its own)."""
    batches: list[Batch] = []
    buckets: list[int] = []
    users = 0
    for bucket, size in enumerate(sizes):
        if size == 0:
            continue
        if buckets and users + size > blueprint.SWEEP_BATCH_USERS:
            batches.append(Batch(run_id, len(batches), tuple(buckets)))
            buckets, users = [], 0
        buckets.append(bucket)
        users += size
    if buckets:
        batches.append(Batch(run_id, len(batches), tuple(buckets)))
    return batches


def _list_tasks(deps: Deps, run_id: str, batches: int, turn: Turn) -> bool:
    """Write down all tasks that may run, less the pool's own. False if nobody could list them: no judging."""
    listed = keys.sweep_listed(run_id)
    try:
        listing = turn.over(deps.launcher.tasks())
        while thousand := list(islice(listing, _WORDS)):
            deps.store.run(
                command("SADD", listed, *thousand, parse=int), command("EXPIRE", listed, _MEMORY_S, parse=int)
            )
    except TryLater:
        return False
    pool_tasks = deps.store.one(command("HVALS", keys.pool_tasks(deps.pool), parse=tagged))
    deps.store.run(*_take_out(run_id, pool_tasks), *_note_done(run_id, "batches", batches))
    return True


def _take_out(run_id: str, known: Sequence[str]) -> list[Step[Any]]:
    """These tasks have an owner."""
    return [
        command("SREM", keys.sweep_listed(run_id), *known[i : i + _WORDS], parse=int)
        for i in range(0, len(known), _WORDS)
    ]


def _note_done(run_id: str, what: str, value: object) -> tuple[Step[Any], ...]:
    """Written by the coordinator and by every batch; whoever writes last, it is forgotten in the end."""
    return (
        command("HSET", keys.sweep_done(run_id), what, value, parse=int),
        command("EXPIRE", keys.sweep_done(run_id), _MEMORY_S, parse=int),
    )


def _judge_leftovers(deps: Deps, previous: str, turn: Turn) -> tuple[int, int]:
    """Judge what no batch of the previous sweep claimed: (tasks stopped, tasks under suspicion)."""
    done, left, suspects = deps.store.run(
        command("HGETALL", keys.sweep_done(previous), parse=fields),
        command("SMEMBERS", keys.sweep_listed(previous), parse=lambda reply: sorted(text(t) for t in reply)),
        command("HGETALL", keys.SWEEP_SUSPECTS, parse=fields),
    )
    if len(done) != int(done.get("batches", -1)) + 1:
        return 0, len(suspects)  # a batch did not finish: its users' tasks only look unknown
    brake = any(value == "brake" for value in done.values())
    views = deps.launcher.describe(left) if left else {}
    expected = _in_use_now(deps, left) | _expected_by_owner(deps, views.values())
    now = deps.clock.now()
    stopped, kept = 0, []
    for task_id, view in turn.over(views.items()):
        seen = SeenTask(
            status=view.status,
            age_ms=_age_ms(view, now),
            suspected=task_id in suspects,
            owner_expects_it=task_id in expected or view.kind is TaskKind.JOB,  # the job reaper's concern
            brake=brake,
        )
        match judge_task(seen):
            case StopTask(why):
                if _stopped(deps, task_id, why):
                    stopped += 1
                else:
                    kept.append(task_id)
            case Wait():
                kept.append(task_id)
    marks = [word for task_id in kept for word in (task_id, suspects.get(task_id, str(round(now * 1000))))]
    deps.store.run(
        command("DEL", keys.SWEEP_SUSPECTS, parse=int),
        *([command("HSET", keys.SWEEP_SUSPECTS, *marks, parse=int)] if marks else []),
    )
    return stopped, len(kept)


def _in_use_now(deps: Deps, left: Sequence[str]) -> set[str]:
    """What is left is a minute old: since then a pool worker may have joined, or have taken a user's mark."""
    pool_tasks, *owners = deps.store.run(
        command("HVALS", keys.pool_tasks(deps.pool), parse=tagged), *(steps.owner_of(task) for task in left)
    )
    views = deps.store.run(*(steps.read_user(user) for user in owners if user))
    marked = {view.live_mark.task_id for view in views if view.want is Want.RUNNING and view.live_mark}
    return marked | set(pool_tasks)


def _expected_by_owner(deps: Deps, views: Iterable[TaskView]) -> set[str]:
    """Tasks whose user's current epoch is their own: a start under way, not an orphan."""
    owned = [view for view in views if view.kind is TaskKind.USER and view.owner and view.epoch]
    users = deps.store.run(*(steps.read_user(str(view.owner)) for view in owned))
    return {
        view.task_id
        for view, user in zip(owned, users, strict=True)
        if user.want is Want.RUNNING and user.epoch == view.epoch
    }


def sweep_batch(deps: Deps, batch: Batch) -> BatchReport:
    """Look at the users of these buckets and act."""
    report = BatchReport()
    members = deps.store.run(
        *(
            command("SMEMBERS", keys.index(bucket), parse=lambda reply: [text(u) for u in reply])
            for bucket in batch.buckets
        )
    )
    users = [user for bucket in members for user in bucket]
    # Nearly all are well: those are glanced at, and only the others are read, asked about and judged.
    well = _glance(deps, users)
    unwell = sorted(user for user, task in zip(users, well, strict=True) if not task)
    views: list[UserView] = _in_chunks(deps, unwell, steps.read_user)
    known = dict.fromkeys(chain(well, *map(_tasks_of, views)))
    deps.store.run(*_take_out(batch.run_id, [task for task in known if task]))

    wanting = [view for view in views if view.want is Want.RUNNING]
    tasks = deps.launcher.describe(sorted({task for view in views if (task := _task_to_ask(view))}))
    vanished = [view for view in wanting if _mark_vanished(view, tasks)]
    report.users, ready = len(users), len(users) - len(views)
    if ready:
        report.phases[Phase.READY] = ready
    report.brake = braked(ready + len(wanting), len(vanished))
    now = deps.clock.now()
    decisions = [(view, reconcile(see(view, tasks, now, brake=report.brake))) for view in views]
    _act(deps, decisions, report)
    for view, action in decisions:
        report.phases[view.phase] = report.phases.get(view.phase, 0) + 1
        report.unaccounted += _unaccounted(view, action)
        report.given_up += view.want is Want.FAILED
    verdict = "brake" if report.brake else "done"
    deps.store.run(*_note_done(batch.run_id, f"batch-{batch.number}", verdict))
    return report


#: An honest worker that could not renew for this long has ended itself: what still runs then only hangs.
_NEWS_MS = ms(blueprint.EXIT_AFTER) + ms(blueprint.MARKLESS_PATIENCE)


def _mark_vanished(view: UserView, tasks: dict[str, TaskView]) -> bool:
    """Does its task run without its mark, as news? Only that speaks for a store that lost marks: not a task
    that waits for capacity, not one that ended, and not one that has hung for several sweeps."""
    task = tasks.get(_task_to_ask(view))
    if view.live_mark or view.lease or task is None:
        return False
    since = view.missing_since_ms
    lately = since is None or view.now_ms - since < _NEWS_MS
    return lately and task.status in (TaskStatus.RUNNING, TaskStatus.UNKNOWN)


def _glance(deps: Deps, users: Sequence[str]) -> list[str]:
    """The task of each user whose worker is well, '' of the others; `_READ_CHUNK` in a round trip."""
    tasks: list[str] = []
    for start in range(0, len(users), _READ_CHUNK):
        reads = chain.from_iterable(map(steps.glance, users[start : start + _READ_CHUNK]))
        replies = deps.store.run(*reads)
        tasks += map(steps.well_task, replies[::2], replies[1::2])
    return tasks


def _in_chunks(deps: Deps, users: Sequence[str], step: Callable[[str], Step[T]]) -> list[T]:
    """One step for each of the users, `_READ_CHUNK` in a round trip."""
    answers: list[T] = []
    for start in range(0, len(users), _READ_CHUNK):
        answers += deps.store.run(*map(step, users[start : start + _READ_CHUNK]))
    return answers


def _tasks_of(view: UserView) -> tuple[str, ...]:
    return (
        view.task_id if view.want is not Want.STOPPED else "",
        view.live_mark.task_id if view.live_mark else "",
        view.lease.task_id if view.lease else "",
    )


def _task_to_ask(view: UserView) -> str:
    """A live mark is proof of life; only without one is the launcher asked."""
    if view.want is Want.RUNNING and view.live_mark is not None:
        return ""
    return (view.lease.task_id if view.lease else "") or view.task_id


def see(view: UserView, tasks: dict[str, TaskView], now: float, *, brake: bool) -> Seen:
    """A user's record and its task's view as the decision table wants them."""
    task = tasks.get(_task_to_ask(view))
    return Seen(
        want=view.want,
        mark=view.live_mark is not None if view.want is Want.RUNNING else view.mark is not None,
        lease=view.lease is not None,
        task=task.status if task else None,
        task_age_ms=_age_ms(task, now) if task else 0,
        missing_ms=None if view.missing_since_ms is None else view.now_ms - view.missing_since_ms,
        backoff_left_ms=max(0, view.retry_at_ms - view.now_ms),
        failures=view.failures,
        brake=brake,
        held=view.held_epoch == view.epoch,
    )


def _age_ms(task: TaskView, now: float) -> int:
    return 0 if task.started_at is None else max(0, round((now - task.started_at) * 1000))


def _act(deps: Deps, decisions: list[tuple[UserView, Action]], report: BatchReport) -> None:
    """Whoever cannot be stopped now is left to the next sweep; the others of the batch are not."""
    before: list[Step[Any]] = []
    repairs: list[Command] = []
    forget: list[UserView] = []
    for view, action in decisions:
        match action:
            case Restart(why, stop_task, clear):
                if stop_task and not _stopped(deps, _task_to_ask(view), why):
                    continue
                if clear and (task := _task_to_ask(view)):
                    before.append(steps.task_stopped(view.user, task, why))
                repairs.append(repair(view, why))
            case StopTask(why):
                report.stopped += _stopped(deps, _task_to_ask(view), why)
            case Wait(_, True):
                before.append(steps.note_missing(view.user, view.epoch))
            case Forget():
                forget.append(view)
    deps.store.run(*before)
    deps.commands.send(repairs)
    report.restarts = len(repairs)
    report.forgotten = _forget(deps, forget)


def _stopped(deps: Deps, task_id: str, why: str) -> bool:
    """Was the task told to stop? False when the launcher has no call left for it now."""
    try:
        deps.launcher.stop(task_id, why)
    except TryLater:
        return False
    return True


def _forget(deps: Deps, views: list[UserView]) -> int:
    """Out of the index first, then a look at the epoch: a start in between puts its user back."""
    deps.store.run(*(steps.index_remove(view.user) for view in views))
    answers = deps.store.run(*(steps.forget_user(view.user, view.epoch) for view in views))
    back = [view for view, answer in zip(views, answers, strict=True) if answer[0] != "forgotten"]
    deps.store.run(*(steps.index_add(view.user) for view in back))
    return len(views) - len(back)


def repair(view: UserView, why: str, cause: Cause = Cause.REPAIR) -> Command:
    """A restart that does nothing once the epoch it saw has moved."""
    return Command(
        action=CommandAction.RESTART,
        user_id=view.user,
        command_id=f"{cause.value}-{view.epoch}",
        issued_at=from_ms(view.now_ms),
        reason=why[:200],
        seen_epoch=view.epoch,
        cause=cause,
    )


#: An epoch is a time in ms as well: a user without a worker, a start or a date for the next try whose last
#: attempt is older than the longest backoff and two sweeps has been lost sight of.
_LOST_SIGHT_MS = ms(blueprint.BACKOFF_MAX) + 2 * ms(blueprint.FN_MAINTENANCE.every or blueprint.BACKOFF_MAX)


def _unaccounted(view: UserView, action: Action) -> bool:
    if view.want is not Want.RUNNING or view.live_mark or view.lease or isinstance(action, Restart):
        return False
    return view.now_ms > max(view.retry_at_ms, view.epoch) + _LOST_SIGHT_MS and view.task_id == ""


def task_stopped(deps: Deps, task_id: str, reason: str) -> str:
    """A task's end was reported (late, twice or out of order: all harmless). Says what was done.

    A user's worker is replaced at once unless it is backing off; the sweep does that later.
    """
    user = deps.store.one(steps.owner_of(task_id))
    if user and deps.store.one(steps.task_stopped(user, task_id, reason))[0] == "cleared":
        view, restarting = deps.store.run(
            steps.read_user(user), command("GETDEL", keys.restarting(user), parse=bool)
        )
        cause = Cause.MOVE if restarting else Cause.REPAIR
        if view.want is not Want.RUNNING:
            return "no worker wanted"
        if view.live_mark or view.lease:
            return "its successor is there"
        if view.retry_at_ms > view.now_ms and not restarting:
            return "backing off"
        deps.commands.send([repair(view, reason or "its task ended", cause)])
        return "repair sent"
    if warm_pool.task_stopped(deps, task_id):
        deps.wake_pool()
        return "pool place freed"
    return "not in use"


def drain(deps: Deps, task_ids: Sequence[str]) -> int:
    """A host is going away: start each user's successor elsewhere; its fence stops the worker there.

    ECS never stops standalone tasks of a draining instance by itself. Idle pool workers are just stopped;
    tasks that are not ours (a service's) are left to their own scheduler.
    """
    owners = deps.store.run(*(steps.owner_of(task_id) for task_id in task_ids))
    users = [user for user in owners if user]
    views = deps.store.run(*(steps.read_user(user) for user in users))
    moves = [
        repair(view, "its host is draining", Cause.MOVE)
        for view in views
        if view.want is Want.RUNNING and view.live_mark and view.live_mark.task_id in task_ids
    ]
    deps.commands.send(moves)
    for task_id, user in zip(task_ids, owners, strict=True):
        if not user and warm_pool.task_stopped(deps, task_id):
            deps.launcher.stop(task_id, "its host is draining")
    return len(moves)
