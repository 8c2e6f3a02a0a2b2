"""The decision table of maintenance: what is seen of one user (or one task) -> what to do. Pure and total."""

from __future__ import annotations

from dataclasses import dataclass

from muster import blueprint
from muster.launchers.port import TaskStatus
from muster.model import Want
from muster.steps import ms


@dataclass(frozen=True, slots=True)
class Seen:
    """One user as a sweep sees it. `task` is None where nobody had to ask; times are ages in ms."""

    want: Want | None
    mark: bool  #: a mark of the current epoch lives
    lease: bool  #: a start of the current epoch is under way
    task: TaskStatus | None  #: of the last known task
    task_age_ms: int = 0  #: since it started, or since it was created while pending
    missing_ms: int | None = None  #: since a sweep first saw its running task without a mark
    backoff_left_ms: int = 0
    failures: int = 0
    brake: bool = False  #: many marks vanished at once: kill nothing
    held: bool = False  #: the current epoch's mark was taken once, so its task is not booting any more


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing to do."""

    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now; look again at the next sweep."""

    why: str
    note_missing: bool = False  #: remember since when its task runs without a mark


@dataclass(frozen=True, slots=True)
class Restart:
    """Send a repair that carries the epoch seen."""

    why: str
    stop_task: bool = False  #: first stop the task that runs without a mark
    clear: bool = False  #: first take away the mark or lease of the ended task


@dataclass(frozen=True, slots=True)
class StopTask:
    """Stop a task that nobody wants."""

    why: str


@dataclass(frozen=True, slots=True)
class Forget:
    """Take the user out of the index."""

    why: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """The store lost the owner's wish; the live worker's next beat restores it."""

    why: str


Action = Leave | Wait | Restart | StopTask | Forget | Adopt

_ENDED = (TaskStatus.STOPPED, TaskStatus.MISSING)


def reconcile(seen: Seen) -> Action:
    """The one answer for what is seen."""
    match seen.want:
        case Want.RUNNING:
            return _wants_worker(seen)
        case Want.STOPPED | Want.FAILED:
            return _wants_none(seen, seen.want)
        case None:
            if seen.mark:
                return Adopt("a live worker restores what the store lost")
            if seen.lease:
                return Wait("a start is under way; its worker restores what the store lost")
            return Forget("nobody asked for this user")


def _wants_worker(seen: Seen) -> Action:
    if seen.mark:
        if seen.task in _ENDED:
            return Restart("its task has ended, the mark is a shadow", clear=True)
        return Leave("alive")
    if seen.lease:
        if seen.task in _ENDED:
            return _restart(seen, "the task of this start has ended", clear=True)
        return Wait("a start is under way")
    match seen.task:
        case TaskStatus.PENDING:
            if seen.task_age_ms < ms(blueprint.PENDING_PATIENCE) or seen.brake:
                return Wait("its task waits for capacity")
            return _restart(seen, "its task never started", stop_task=True)
        case TaskStatus.RUNNING:
            if seen.brake:
                return Wait("many marks vanished at once; it takes its mark again", note_missing=True)
            if not seen.held and seen.task_age_ms < ms(blueprint.BOOT_PATIENCE):
                return Wait("its task has just started")
            if seen.missing_ms is None or seen.missing_ms < ms(blueprint.MARKLESS_PATIENCE):
                return Wait("its task runs without a mark; it may take it again", note_missing=True)
            return _restart(seen, "its task ran long without a mark", stop_task=True)
        case TaskStatus.UNKNOWN:
            return Wait("nobody could say whether its task lives")
        case TaskStatus.STOPPED | TaskStatus.MISSING:
            return _restart(seen, "its task has ended", clear=True)
        case None:
            return _restart(seen, "it has no task")


def _restart(seen: Seen, why: str, *, stop_task: bool = False, clear: bool = False) -> Action:
    if seen.backoff_left_ms > 0:
        return Wait(f"{why}; backing off")
    return Restart(why, stop_task=stop_task, clear=clear)


def _wants_none(seen: Seen, want: Want) -> Action:
    match seen.task:
        case TaskStatus.RUNNING | TaskStatus.PENDING:
            if seen.brake:
                return Wait("many marks vanished at once; nothing is killed")
            return StopTask(f"its owner wants none ({want.value})")
        case TaskStatus.UNKNOWN:
            return Wait("nobody could say whether its task lives")
        case TaskStatus.STOPPED | TaskStatus.MISSING | None:
            if seen.mark or seen.lease:
                return Wait("its worker is letting go")
            if want is Want.FAILED:
                return Leave("given up; only a person's start resets it")
            return Forget("stopped, and nothing is left")


@dataclass(frozen=True, slots=True)
class SeenTask:
    """A listed task that no user and no pool claimed in the last whole sweep."""

    status: TaskStatus
    age_ms: int
    suspected: bool  #: it was unknown in the sweep before, too
    owner_expects_it: bool  #: its user's current epoch is the task's own
    brake: bool


def judge_task(seen: SeenTask) -> Leave | Wait | StopTask:
    """What to do with a task that seems to have no owner."""
    if seen.status in _ENDED:
        return Leave("it has ended")
    if seen.status is TaskStatus.UNKNOWN or seen.brake:
        return Wait("nothing is killed on a guess")
    if seen.owner_expects_it or seen.age_ms < ms(blueprint.BOOT_PATIENCE):
        return Leave("it is young, or its start is under way")
    if not seen.suspected:
        return Wait("suspect; judged at the next sweep")
    return StopTask("no owner in two sweeps")


def braked(wanting: int, missing: int) -> bool:
    """Did so many marks vanish at once that the store, not the workers, must have failed?"""
    return missing >= blueprint.BRAKE_MINIMUM and missing > wanting * blueprint.BRAKE_SHARE
