"""Tasks that exist only on a clock: late, failed, lost and never-starting ones, as a script says.

Ships with the product, because whoever tests against the core needs it. Nothing here runs by itself:
every answer is computed from the clock at the moment it is asked for.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from muster.clock import Clock
from muster.errors import TryLater
from muster.launchers.port import STOPPED_VISIBLE, Launch, TaskDied, TaskStatus, TaskView


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of one launch. Use the functions below, they say it in words."""

    starts_after: float = 0.0  #: seconds; `inf` never starts
    fails: str | None = None  #: stops with this reason instead of starting
    answer_lost: bool = False  #: the task exists, the caller gets `TryLater`
    turned_away: str | None = None  #: nothing exists, the caller gets `TryLater` with this reason


def late(seconds: float) -> Plan:
    """Runs only after `seconds`."""
    return Plan(starts_after=seconds)


def never() -> Plan:
    """Accepted, then pending for ever."""
    return Plan(starts_after=inf)


def fails(reason: str, after: float = 0.0) -> Plan:
    """Accepted, then stopped with `reason` without ever running."""
    return Plan(starts_after=after, fails=reason)


def lost(starts_after: float = 0.0) -> Plan:
    """Started, but the answer does not reach the caller."""
    return Plan(starts_after=starts_after, answer_lost=True)


def throttled() -> Plan:
    """Not even looked at: too many calls."""
    return Plan(turned_away="throttled: rate exceeded")


def no_capacity() -> Plan:
    """Not started: nowhere to put it."""
    return Plan(turned_away="no capacity")


@dataclass(slots=True)
class _Task:
    launch: Launch
    created_at: float
    running_at: float
    stopped_at: float = inf
    stop_asked: bool = False
    stopped_reason: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the port, for tests to count."""

    name: str
    launch: Launch | None = None
    task_ids: tuple[str, ...] = ()


class FakeLauncher:
    """The `Launcher` without tasks. The knobs are plain attributes; `plan` scripts the next launches."""

    def __init__(self, clock: Clock) -> None:
        self.calls: list[Call] = []
        self.stop_delay = 0.0  #: seconds from stop() until the task has ended
        self.list_lag = 0.0  #: tasks() answers as of this many seconds ago
        self.describe_throttled = False  #: describe() knows nothing while this is set
        self._clock = clock
        self._plans: deque[Plan] = deque()
        self._tasks: dict[str, _Task] = {}
        self._lock = threading.Lock()

    def plan(self, *plans: Plan) -> None:
        """Script the next launches, in order; after them, launches run at once again.

        Being turned away happens to any call of run(); the other plans to calls that start a new task.
        """
        with self._lock:
            self._plans.extend(plans)

    def finish(self, task_id: str, exit_code: int, reason: str = "the process ended") -> None:
        """The task ends by itself, now."""
        with self._lock:
            task = self._tasks[task_id]
            task.stopped_at = self._clock.now()
            task.exit_code = exit_code
            task.stopped_reason = reason

    def living(self) -> dict[str, Launch]:
        """What truly runs or will run: no lag, no throttle, and no call counted."""
        now = self._clock.now()
        with self._lock:
            return {task_id: task.launch for task_id, task in self._tasks.items() if task.stopped_at > now}

    def run(self, launch: Launch) -> str:
        now = self._clock.now()
        task_id = f"f-{launch.token[:20]}"
        with self._lock:
            self.calls.append(Call("run", launch))
            if self._plans and self._plans[0].turned_away:
                raise TryLater(str(self._plans.popleft().turned_away))
            if task := self._tasks.get(task_id):
                # A task that was asked to stop never becomes a live worker, as on ECS.
                if task.stop_asked or task.stopped_at <= now:
                    raise TaskDied(task_id, task.stopped_reason)
                return task_id
            plan = self._plans.popleft() if self._plans else Plan()
            task = _Task(launch, created_at=now, running_at=now + plan.starts_after)
            if plan.fails is not None:
                task.stopped_at, task.stopped_reason = task.running_at, plan.fails
            self._tasks[task_id] = task
        if plan.answer_lost:
            raise TryLater("the answer was lost; ask again")
        return task_id

    def stop(self, task_id: str, reason: str) -> None:
        now = self._clock.now()
        with self._lock:
            self.calls.append(Call("stop", task_ids=(task_id,)))
            task = self._tasks.get(task_id)
            if task is not None and task.stopped_at > now + self.stop_delay:
                task.stop_asked = True
                task.stopped_at, task.stopped_reason = now + self.stop_delay, reason

    def describe(self, task_ids: Sequence[str]) -> dict[str, TaskView]:
        now = self._clock.now()
        with self._lock:
            self.calls.append(Call("describe", task_ids=tuple(task_ids)))
            if self.describe_throttled:
                return {task_id: TaskView(task_id, TaskStatus.UNKNOWN) for task_id in task_ids}
            return {task_id: self._view(task_id, now) for task_id in task_ids}

    def tasks(self) -> Iterator[str]:
        then = self._clock.now() - self.list_lag
        with self._lock:
            self.calls.append(Call("tasks"))
            ids = [i for i, task in self._tasks.items() if task.created_at <= then < task.stopped_at]
        return iter(ids)

    def _view(self, task_id: str, now: float) -> TaskView:
        task = self._tasks.get(task_id)
        if task is None or task.stopped_at + STOPPED_VISIBLE.total_seconds() <= now:
            return TaskView(task_id, TaskStatus.MISSING)
        stopped = task.stopped_at <= now
        running = task.running_at <= now
        ran = running and task.running_at < task.stopped_at
        return TaskView(
            task_id=task_id,
            status=TaskStatus.STOPPED if stopped else TaskStatus.RUNNING if running else TaskStatus.PENDING,
            started_at=task.running_at if ran else task.created_at,
            stopped_reason=task.stopped_reason if stopped else None,
            exit_code=task.exit_code if stopped else None,
            owner=task.launch.owner,
            kind=task.launch.kind,
            epoch=task.launch.epoch,
        )
