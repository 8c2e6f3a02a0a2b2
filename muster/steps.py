"""The atomic steps as typed builders: one function per Lua file. Building a step talks to nobody."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from muster import blueprint, keys
from muster.model import (
    Assignment,
    Cause,
    HistoryEntry,
    Mark,
    Phase,
    StartEntry,
    StartLease,
    UserView,
    Want,
)
from muster.store import Step, command, fields, lua, tagged, text


def ms(duration: timedelta) -> int:
    """A duration as the wire wants it."""
    return round(duration.total_seconds() * 1000)


@dataclass(frozen=True, slots=True)
class Begin:
    """A start has begun under `epoch`: launch or claim now."""

    epoch: int
    attempt: int
    issued_at_ms: int
    command_id: str
    credentials_ref: str


@dataclass(frozen=True, slots=True)
class Settled:
    """Nothing to launch: `tag` is active, starting, superseded, moved or failed."""

    tag: str
    detail: str


def _begun(reply: Any) -> Begin | Settled:
    tag, *rest = tagged(reply)
    if tag == "begin":
        return Begin(int(rest[0]), int(rest[1]), int(rest[2]), rest[3], rest[4])
    return Settled(tag, rest[0])


def begin_start(
    user: str,
    cause: Cause,
    issued_at_ms: int,
    command_id: str,
    credentials_ref: str = "",
    seen_epoch: int = 0,
) -> Step[Begin | Settled]:
    args = (
        cause.value,
        issued_at_ms,
        command_id,
        credentials_ref,
        ms(blueprint.START_LEASE),
        seen_epoch,
        blueprint.GIVE_UP_AFTER,
        ms(blueprint.BACKOFF_FIRST),
        ms(blueprint.BACKOFF_MAX),
        ms(blueprint.RESUMED_LEASE),
    )
    return lua("begin_start", keys.user_keys(user)[:5], args, _begun)


def bind_start(user: str, epoch: int, task_id: str) -> Step[tuple[str, ...]]:
    return lua("bind_start", keys.user_keys(user)[:5], (epoch, task_id, ms(blueprint.COLD_LEASE)), tagged)


def abort_start(user: str, epoch: int, reason: str, *, again: bool) -> Step[tuple[str, ...]]:
    args = (epoch, int(again), ms(blueprint.START_LEASE), reason[:200])
    return lua("abort_start", keys.user_keys(user)[:5], args, tagged)


def begin_stop(user: str, issued_at_ms: int, command_id: str, reason: str = "") -> Step[tuple[str, ...]]:
    return lua("begin_stop", keys.user_keys(user)[:5], (issued_at_ms, command_id, reason[:200]), tagged)


def _identity(given: Assignment, worker_id: str, task_id: str, version: str) -> tuple[Any, ...]:
    return (
        given.epoch,
        worker_id,
        task_id,
        given.via.value,
        version,
        ms(blueprint.MARK_TTL),
        given.issued_at_ms,
        given.command_id,
        given.credentials_ref,
        given.cause.value,
    )


def take_mark(given: Assignment, worker_id: str, task_id: str, version: str) -> Step[tuple[str, ...]]:
    args = _identity(given, worker_id, task_id, version)
    return lua("take_mark", keys.user_keys(given.user)[:5], args, tagged)


def beat_mark(
    given: Assignment, worker_id: str, task_id: str, version: str, state: str, *, ready: bool
) -> Step[tuple[str, ...]]:
    args = (
        *_identity(given, worker_id, task_id, version),
        state,
        ms(blueprint.STATE_TTL),
        int(ready),
        ms(blueprint.HEALTHY_AFTER),
    )
    return lua("beat_mark", keys.user_keys(given.user), args, tagged)


def drop_mark(
    user: str, epoch: int, worker_id: str, reason: str, *, final: bool = False
) -> Step[tuple[str, ...]]:
    args = (epoch, worker_id, reason[:200], int(final))
    return lua("drop_mark", keys.user_keys(user), args, tagged)


def task_stopped(user: str, task_id: str, reason: str) -> Step[tuple[str, ...]]:
    return lua("task_stopped", keys.user_keys(user), (task_id, reason[:200]), tagged)


def note_missing(user: str, epoch: int) -> Step[tuple[str, ...]]:
    return lua("note_missing", keys.user_keys(user)[:5], (epoch,), tagged)


def forget_user(user: str, epoch: int) -> Step[tuple[str, ...]]:
    return lua("forget_user", keys.user_keys(user)[:5], (epoch,), tagged)


def read_user(user: str, *, history: bool = False) -> Step[UserView]:
    return lua("read_user", keys.user_keys(user), (int(history),), lambda reply: _user_view(user, reply))


#: As a worker writes it into its published state.
_SESSION_OPEN = json.dumps({"phase": Phase.READY.value}, separators=(",", ":"))[1:-1]


def glance(user: str) -> tuple[Step[list[Any]], Step[list[Any]]]:
    """Two plain reads that `well_task` makes something of, to be sent in this order: the mark first and the
    epoch last, so that whatever fences the worker in between is seen.

    Two commands cost the store a third of one script (docs/decisions/0011).
    """
    return (
        command("HMGET", keys.active(user), "task_id", "epoch", "ready_at", parse=_as_it_is),
        command("MGET", keys.state(user), keys.epoch(user), parse=_as_it_is),
    )


def _as_it_is(reply: Any) -> list[Any]:
    return reply  # type: ignore[no-any-return]


def well_task(mark: Sequence[Any], rest: Sequence[Any]) -> str:
    """The task of a worker that is well: a mark of the current epoch (so no stop has come since), ready, its
    session open. Else '': look closer."""
    task_id, marked, ready_at = mark
    state, epoch = rest
    if not ready_at or not state or int(marked) < int(epoch or 0) or _SESSION_OPEN not in text(state):
        return ""
    return text(task_id)


def _user_view(user: str, reply: Any) -> UserView:
    desired, mark, lease = fields(reply[2]), fields(reply[3]), fields(reply[5])
    return UserView(
        user=user,
        now_ms=int(reply[0]),
        epoch=int(reply[1]),
        want=Want(desired["want"]) if desired.get("want") else None,
        issued_at_ms=int(desired.get("issued_at", 0)),
        command_id=desired.get("command_id", ""),
        failures=int(desired.get("failures", 0)),
        retry_at_ms=int(desired.get("retry_at", 0)),
        task_id=desired.get("task_id", ""),
        missing_since_ms=int(desired["missing_since"]) if "missing_since" in desired else None,
        reason=desired.get("reason", ""),
        mark=_mark(mark, int(reply[4])) if mark else None,
        lease=_lease(lease, int(reply[6])) if lease else None,
        state=text(reply[7]),
        history=tuple(_history(text(line)) for line in reply[8]),
        held_epoch=int(desired.get("held_epoch", 0)),
    )


def _mark(mark: dict[str, str], ttl_ms: int) -> Mark:
    ready = mark.get("ready_at")
    return Mark(
        worker_id=mark["worker_id"],
        task_id=mark["task_id"],
        epoch=int(mark["epoch"]),
        via=mark["via"],
        version=mark["version"],
        since_ms=int(mark["since"]),
        ready_at_ms=int(ready) if ready else None,
        issued_at_ms=int(mark["issued_at"]),
        cause=mark["cause"],
        ttl_ms=ttl_ms,
    )


def _lease(lease: dict[str, str], ttl_ms: int) -> StartLease:
    return StartLease(
        epoch=int(lease["epoch"]),
        task_id=lease.get("task_id", ""),
        since_ms=int(lease.get("since", 0)),
        cause=lease.get("cause", Cause.START),
        ttl_ms=ttl_ms,
    )


def _history(line: str) -> HistoryEntry:
    at, event, epoch, detail = line.split("|", 3)
    return HistoryEntry(int(at), event, int(epoch), detail)


def history(user: str) -> Step[tuple[HistoryEntry, ...]]:
    """The user's time line, newest first."""
    return command(
        "LRANGE", keys.history(user), 0, -1, parse=lambda lines: tuple(_history(text(line)) for line in lines)
    )


def note_start(given: Assignment) -> Step[tuple[str, ...]]:
    """Not on the user's slot, so a step of its own; it shares the round trip of the beat that says ready."""
    args = (given.user, given.epoch, given.via.value, given.cause.value, given.issued_at_ms)
    return lua("note_start", (keys.starts(),), (*args, blueprint.STARTS_KEPT), tagged)


def recent_starts(most: int) -> Step[list[StartEntry]]:
    """Newest first. A client that sent again notes a start twice: the same epoch is one start."""

    def parse(reply: Any) -> list[StartEntry]:
        first: dict[tuple[str, int], StartEntry] = {}
        for line in reversed(reply):
            at, epoch, via, cause, issued_at, user = text(line).split("|", 5)
            entry = StartEntry(int(at), int(epoch), via, cause, int(issued_at), user)
            first.setdefault((user, entry.epoch), entry)
        return list(reversed(first.values()))

    return command("LRANGE", keys.starts(), 0, most - 1, parse=parse)


def index_add(user: str) -> Step[int]:
    return command("SADD", keys.index(keys.bucket_of(user)), user, parse=int)


def index_remove(user: str) -> Step[int]:
    return command("SREM", keys.index(keys.bucket_of(user)), user, parse=int)


def own_task(task_id: str, user: str) -> Step[str]:
    """Remember whose task this is, for the event that will say it stopped."""
    return command("SET", keys.task_owner(task_id), user, "EX", 30 * 86400, parse=text)


def owner_of(task_id: str) -> Step[str]:
    return command("GET", keys.task_owner(task_id), parse=lambda reply: text(reply) if reply else "")


@dataclass(frozen=True, slots=True)
class Slot:
    """The semaphore's answer: whether a place was taken, and how many are left of how many wanted."""

    reserved: bool
    left: int
    target: int


def reserve_slot(pool: str, claim_id: str, version: str, claim: str = "") -> Step[Slot]:
    """With `claim`, the claim goes out on the Valkey channel in the same step."""

    def parse(reply: Any) -> Slot:
        tag, left, target = tagged(reply)
        return Slot(tag == "reserved", int(left), int(target))

    args = (claim_id, version, ms(blueprint.CLAIM_DEADLINE), claim, ms(blueprint.POOL_DEMAND_MEMORY))
    all_keys = (*keys.pool_keys(pool), keys.pool_claims(pool), keys.pool_demand(pool))
    return lua("reserve_slot", all_keys, args, parse)


def release_slot(pool: str, claim_id: str) -> Step[tuple[str, ...]]:
    return lua("release_slot", keys.pool_keys(pool), (claim_id,), tagged)


def take_slot(pool: str, worker_id: str, claim_id: str) -> Step[tuple[str, ...]]:
    return lua("take_slot", keys.pool_keys(pool), (worker_id, claim_id), tagged)


def pool_beat(
    pool: str, worker_id: str, task_id: str, version: str, launch_id: str, host: str
) -> Step[tuple[str, ...]]:
    args = (worker_id, task_id, version, launch_id, ms(blueprint.POOL_MEMBER_TTL), host)
    return lua("pool_beat", (*keys.pool_keys(pool), keys.pool_member(pool, worker_id)), args, tagged)


def leave_pool(pool: str, worker_id: str) -> Step[tuple[str, ...]]:
    all_keys = (*keys.pool_keys(pool), keys.pool_member(pool, worker_id))
    return lua("leave_pool", all_keys, (worker_id,), tagged)


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What the pool is, and what must be done to bring it to its target."""

    idle: int
    launching: int
    outstanding: int
    retired: tuple[tuple[str, str], ...]  #: (worker_id, task_id), already out of the semaphore
    overdue: tuple[tuple[str, str], ...]  #: (launch_id, task_id or ''), their places are free again
    launch_ids: tuple[str, ...]  #: reserved; launch one worker for each


def plan_pool(pool: str, target: int, version: str, run_id: str, most: int) -> Step[PoolPlan]:
    def pairs(flat: Sequence[Any]) -> tuple[tuple[str, str], ...]:
        words = [text(word) for word in flat]
        return tuple(zip(words[::2], words[1::2], strict=True))

    def parse(reply: Any) -> PoolPlan:
        idle, launching, outstanding, retired, overdue, launch_ids = reply
        return PoolPlan(
            int(idle), int(launching), int(outstanding), pairs(retired), pairs(overdue), tagged(launch_ids)
        )

    args = (target, version, ms(blueprint.POOL_LAUNCH_DEADLINE), run_id, most)
    return lua("plan_pool", keys.pool_keys(pool), args, parse)


def bind_launch(pool: str, launch_id: str, task_id: str) -> Step[tuple[str, ...]]:
    return lua("bind_launch", keys.pool_keys(pool), (launch_id, task_id), tagged)


def take_budget(bucket: blueprint.CallBucket, calls: int, floor: int) -> Step[tuple[str, ...]]:
    args = (calls, bucket.burst, bucket.per_second, floor)
    return lua("take_budget", (keys.budget(bucket.name),), args, tagged)


def begin_sweep(run_id: str) -> Step[tuple[str, ...]]:
    return lua("begin_sweep", (keys.SWEEP_RUN,), (run_id, ms(blueprint.SWEEP_LEASE)), tagged)


def keep_sweep(run_id: str) -> Step[tuple[str, ...]]:
    return lua("keep_sweep", (keys.SWEEP_RUN,), (run_id, ms(blueprint.SWEEP_LEASE)), tagged)


def end_sweep(run_id: str) -> Step[tuple[str, ...]]:
    return lua("end_sweep", (keys.SWEEP_RUN,), (run_id, ms(blueprint.SWEEP_MEMORY)), tagged)
