"""A user's record as a person sees it. Pure: record in, view out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from api.source import (
    Explanation,
    LeaseView,
    MarkView,
    NextStep,
    StartKind,
    StartRecord,
    Timeline,
    Transition,
    WorkerView,
)
from muster.blueprint import FN_MAINTENANCE, MARK_TTL
from muster.commands import from_ms
from muster.maintenance import see
from muster.model import Cause, HistoryEntry, Mark, Phase, StartEntry, StartLease, UserView, start_latency_ms
from muster.reconcile import Adopt, Forget, Leave, Restart, StopTask, Wait, reconcile
from muster.steps import ms

_MARK_TTL_MS = ms(MARK_TTL)
_SWEEP = FN_MAINTENANCE.every or timedelta(minutes=1)

#: What a time line says when a worker is lost, and what stands before the loss.
_LOST = ("mark dropped", "task stopped", "start aborted")
_WELL = ("ready", "mark restored", "begin start", "begin restart", "begin move", "begin stop")

#: Why each event of the time line happened. What is not here speaks for itself.
_WHY = {
    "begin start": "its owner asked for a worker",
    "begin restart": "its owner asked for a fresh worker",
    "begin repair": "maintenance found no live worker",
    "begin move": "its host is going away",
    "begin stop": "its owner asked for none",
    "superseded": "a newer command had been seen",
    "launched": "no warm worker was free, a task was launched",
    "launch failed": "the launcher refused; tried again under a new token",
    "start aborted": "the launch failed for certain",
    "mark taken": "this worker, and no other, may act from here on",
    "mark restored": "the store had lost the mark; its worker wrote it again",
    "mark dropped": "the worker let go",
    "ready": "the session is open",
    "task stopped": "the task's end was reported",
    "given up": "too many failures in a row; only a person's start resets it",
}


def known(view: UserView) -> bool:
    """Did anybody ever ask for this user?"""
    return view.want is not None or view.epoch > 0 or view.mark is not None


def worker_view(view: UserView) -> WorkerView:
    mark, published = view.mark, view.published
    phase = view.phase_by(published)
    pid = published.get("pid")
    return WorkerView(
        user_id=view.user,
        want=view.want,
        phase=phase,
        via=mark.via if mark else None,
        epoch=view.epoch,
        task_id=(mark.task_id if mark else view.lease.task_id if view.lease else view.task_id) or None,
        pid=pid if isinstance(pid, int) and mark else None,
        heartbeat_age_s=_beat_age_s(mark) if mark else None,
        since=_since(view),
        start_latency_ms=_start_latency_ms(mark) if mark else None,
        failures=view.failures,
        reason=view.reason or str(published.get("reason") or "") or None,
        version=mark.version if mark else None,
        next_try_at=from_ms(view.retry_at_ms) if phase is Phase.BACKING_OFF else None,
    )


def _since(view: UserView) -> datetime | None:
    """An epoch is raised to the server's time, so it dates the last start or stop that began."""
    if (mark := view.live_mark) is not None:
        return from_ms(mark.ready_at_ms or mark.since_ms)
    if view.lease is not None and view.lease.since_ms:
        return from_ms(view.lease.since_ms)
    return from_ms(view.epoch) if view.epoch else None


def _start_latency_ms(mark: Mark) -> int | None:
    if mark.ready_at_ms is None:
        return None
    return start_latency_ms(mark.cause, mark.epoch, mark.issued_at_ms, mark.ready_at_ms)


def explanation(view: UserView) -> Explanation:
    """`view` must have been read with its history."""
    return Explanation(worker_view(view), [_transition(e) for e in reversed(view.history)], _next(view))


def timeline(view: UserView) -> Timeline:
    """`view` must have been read with its history."""
    return Timeline(
        worker=worker_view(view),
        history=[_transition(entry) for entry in view.history],
        next=_next(view),
        command_id=view.command_id or None,
        issued_at=from_ms(view.issued_at_ms) if view.issued_at_ms else None,
        mark=_mark_view(view.mark) if view.mark else None,
        lease=_lease_view(view.lease) if view.lease else None,
        state=view.published,
    )


def _mark_view(mark: Mark) -> MarkView:
    return MarkView(
        worker_id=mark.worker_id,
        epoch=mark.epoch,
        cause=mark.cause,
        since=from_ms(mark.since_ms),
        ready_at=from_ms(mark.ready_at_ms) if mark.ready_at_ms else None,
        beat_age_s=_beat_age_s(mark),
        ends_in_s=max(0, mark.ttl_ms) / 1000,
    )


def _lease_view(lease: StartLease) -> LeaseView:
    return LeaseView(
        epoch=lease.epoch,
        task_id=lease.task_id or None,
        cause=lease.cause,
        since=from_ms(lease.since_ms) if lease.since_ms else None,
        ends_in_s=max(0, lease.ttl_ms) / 1000,
    )


def _beat_age_s(mark: Mark) -> float:
    """A beat gives the mark its whole life again."""
    return max(0, _MARK_TTL_MS - mark.ttl_ms) / 1000


def start_record(entry: StartEntry, history: Sequence[HistoryEntry]) -> StartRecord:
    """`history` is needed of a repaired user only."""
    repair = entry.cause == Cause.REPAIR
    return StartRecord(
        at=from_ms(entry.ready_at_ms),
        user_id=entry.user,
        kind=StartKind.REPAIR if repair else StartKind(entry.via),
        latency_ms=entry.latency_ms,
        heal_ms=max(0, entry.ready_at_ms - _lost_at_ms(entry, history)) if repair else None,
    )


def _lost_at_ms(entry: StartEntry, history: Sequence[HistoryEntry]) -> int:
    """When the loss that this repair mended was seen: the first sign since the user was last ready. Where the
    time line has no sign (a mark that ran out, lines that are gone), the repair's begin is what is known."""
    seen = entry.epoch
    for line in history:  # newest first
        if line.at_ms > entry.ready_at_ms or line.epoch >= entry.epoch:
            continue
        if line.event in _WELL:
            break
        if line.event in _LOST:
            seen = line.at_ms
    return seen


def _transition(entry: HistoryEntry) -> Transition:
    why = _WHY.get(entry.event, "")
    return Transition(from_ms(entry.at_ms), entry.event, entry.epoch, entry.detail, why)


def _next(view: UserView) -> NextStep:
    """What maintenance would decide now. Nobody is asked about tasks here; where it would be, it says so."""
    now = from_ms(view.now_ms)
    action = reconcile(see(view, {}, view.now_ms / 1000, brake=False))
    asks = " (the launcher is asked about its task first)" if view.task_id and not view.live_mark else ""
    sweep_due = now + _SWEEP
    match action:
        case Wait(why) if view.lease is not None:
            lease_ends = now + timedelta(milliseconds=max(0, view.lease.ttl_ms))
            return NextStep("wait", why, now, lease_ends)
        case Wait() if view.retry_at_ms > view.now_ms:
            retry_at = from_ms(view.retry_at_ms)
            return NextStep(
                "restart", f"backing off after {view.failures} failures", retry_at, retry_at + _SWEEP
            )
        case Wait(why):
            return NextStep("wait", why, now, sweep_due)
        case Restart(why):
            return NextStep("restart", f"no worker is live{asks}" if asks else why, now, sweep_due)
        case Forget(why):
            return NextStep("forget", f"{why}: it leaves the list{asks}", now, sweep_due)
        case Adopt(why):
            return NextStep("adopt", why, now, sweep_due)
        case StopTask(why):
            return NextStep("stop", why, now, sweep_due)
        case Leave(why):
            return NextStep("none", why, None, None)
