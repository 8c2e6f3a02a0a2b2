"""A user's record as a person sees it. Pure: record in, view out."""

from __future__ import annotations

from datetime import datetime, timedelta

from api.source import Explanation, NextStep, Transition, WorkerView
from muster.blueprint import FN_MAINTENANCE, MARK_TTL
from muster.commands import from_ms
from muster.maintenance import see
from muster.model import Cause, HistoryEntry, Mark, Phase, UserView
from muster.reconcile import Adopt, Forget, Leave, Restart, StopTask, Wait, reconcile
from muster.steps import ms

_MARK_TTL_MS = ms(MARK_TTL)
_SWEEP = FN_MAINTENANCE.every or timedelta(minutes=1)

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
    pid = published.get("pid")
    return WorkerView(
        user_id=view.user,
        want=view.want,
        phase=view.phase,
        via=mark.via if mark else None,
        epoch=view.epoch,
        task_id=(mark.task_id if mark else view.lease.task_id if view.lease else view.task_id) or None,
        pid=pid if isinstance(pid, int) and mark else None,
        heartbeat_age_s=max(0, _MARK_TTL_MS - mark.ttl_ms) / 1000 if mark else None,
        since=_since(view),
        start_latency_ms=_start_latency_ms(mark) if mark else None,
        failures=view.failures,
        reason=view.reason or str(published.get("reason") or "") or None,
        version=mark.version if mark else None,
        next_try_at=from_ms(view.retry_at_ms) if view.phase is Phase.BACKING_OFF else None,
    )


def _since(view: UserView) -> datetime | None:
    """An epoch is raised to the server's time, so it dates the last start or stop that began."""
    if (mark := view.live_mark) is not None:
        return from_ms(mark.ready_at_ms or mark.since_ms)
    if view.lease is not None and view.lease.since_ms:
        return from_ms(view.lease.since_ms)
    return from_ms(view.epoch) if view.epoch else None


def _start_latency_ms(mark: Mark) -> int | None:
    """A repair or a move carries the moment of the owner's command, which may be days old; its epoch says
    when it began itself."""
    if mark.ready_at_ms is None:
        return None
    began = mark.epoch if mark.cause in (Cause.REPAIR, Cause.MOVE) else mark.issued_at_ms
    return max(0, mark.ready_at_ms - began)


def explanation(view: UserView) -> Explanation:
    """`view` must have been read with its history."""
    return Explanation(worker_view(view), [_transition(e) for e in reversed(view.history)], _next(view))


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
