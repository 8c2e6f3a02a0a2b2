"""Tasks as real processes of this machine, which outlive the process that started them.

A task is a session of its own. What is known about it is written down BEFORE it is started, so that
after a crash at any point the next launcher on the same folder either finds the process or knows
that there is none:

    write intent ---- start process ---- write pid ---- watch
         |                  |                |
     crash: no process   crash: found by    crash: found by
     has this task id,   the task id in     pid and birth
     start it again      its environment
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from muster.blueprint import DRAIN_GRACE
from muster.clock import Clock, SystemClock
from muster.errors import Refused, TryLater
from muster.launchers.forkserver import ForkServer, settle
from muster.launchers.port import STOPPED_VISIBLE, Launch, TaskDied, TaskStatus, TaskView, identity
from muster.launchers.procfs import born, leaders, spawn
from muster.launchers.records import Record, Records

log = logging.getLogger(__name__)

Spawn = Callable[[Sequence[str], Mapping[str, str], Path, Path], int]

#: What a worker may see of the control process's environment, besides MUSTER_*.
PASSED_ON = {
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_REGION",
    "HOME",
    "LANG",
    "PATH",
    "PYTHONPATH",
    "SSL_CERT_FILE",
    "TZ",
    "VIRTUAL_ENV",
}
#: Only beside AWS_ENDPOINT_URL: there they are the local endpoint's, not somebody's account.
PASSED_ON_TO_LOCAL_ENDPOINT = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


def passed_on(env: Mapping[str, str]) -> dict[str, str]:
    """The part of `env` that a worker may see."""
    names = PASSED_ON | (PASSED_ON_TO_LOCAL_ENDPOINT if env.get("AWS_ENDPOINT_URL") else set())
    return {name: value for name, value in env.items() if name in names or name.startswith("MUSTER_")}


class ProcessLauncher:
    """The `Launcher` of one machine. One launcher at a time owns a `folder`; it adopts what lives there.

    Output of a task goes to `folder/logs/<task_id>.log`, which is never removed here. `on_exit` is
    called from the watcher thread, once per task that ended, also for one that ended while nobody
    watched; it must not block. `close` leaves the tasks running.

    Tasks are executed; with a `fork` server they are forked from it, which is faster by far. Either way
    they look the same from outside, so either kind of launcher adopts the tasks of the other.
    """

    def __init__(
        self,
        folder: Path,
        command: Sequence[str] = (sys.executable, "-m", "worker"),
        env: Mapping[str, str] | None = None,
        grace: timedelta = DRAIN_GRACE,
        clock: Clock | None = None,
        on_exit: Callable[[TaskView], None] | None = None,
        spawn: Spawn = spawn,
        fork: ForkServer | None = None,
    ) -> None:
        if not hasattr(os, "pidfd_open"):
            raise Refused("pidfd_open is missing: the process launcher needs Linux 5.3 or newer")
        self._folder = folder.resolve()
        self._command = tuple(command)
        self._env = passed_on(env or {})
        self._grace = grace.total_seconds()
        self._clock = clock or SystemClock()
        self._on_exit = on_exit
        self._fork = fork
        self._spawn = fork.spawn if fork else spawn
        self._records = Records(self._folder / "tasks")
        self._logs = self._folder / "logs"
        self._logs.mkdir(exist_ok=True)

        self._lock = threading.RLock()  # guards everything below
        self._known: dict[str, Record] = {}
        self._pidfds: dict[int, str] = {}
        self._kill_at: dict[str, float] = {}
        self._ended: deque[str] = deque()  # oldest first, for pruning
        self._gone: deque[Record] = deque()  # ended unseen; the watcher tells of them
        self._closed = False

        self._owner_lock = self._own_folder()
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._begin()
        self._watcher = threading.Thread(target=self._watch, name="process-watcher", daemon=True)
        self._watcher.start()

    def run(self, launch: Launch) -> str:
        task_id = f"p-{launch.token[:20]}"
        with self._lock:
            if self._closed:
                raise TryLater("this launcher is closed; ask the next one")
            self._prune()
            if known := self._known.get(task_id):
                # A task that was asked to stop never becomes a live worker, as on ECS.
                if known.ended_at is not None or known.stop_reason is not None:
                    raise TaskDied(task_id, known.stop_reason or "the process ended")
                return task_id
            self._start(Record.of(task_id, launch, self._clock.now()), launch)
        return task_id

    def stop(self, task_id: str, reason: str) -> None:
        with self._lock:
            if self._closed:
                raise TryLater("this launcher is closed; ask the next one")
            record = self._known.get(task_id)
            if record is None or record.ended_at is not None or record.stop_reason is not None:
                return
            record.stop_reason = reason
            self._note(record)
            self._end_in_grace(record)
            os.eventfd_write(self._wake, 1)

    def describe(self, task_ids: Sequence[str]) -> dict[str, TaskView]:
        with self._lock:
            self._prune()
            missing = TaskStatus.MISSING
            return {
                task_id: known.view() if (known := self._known.get(task_id)) else TaskView(task_id, missing)
                for task_id in task_ids
            }

    def tasks(self) -> Iterator[str]:
        with self._lock:
            living = [task_id for task_id, record in self._known.items() if record.ended_at is None]
        return iter(living)

    def pid(self, task_id: str) -> int | None:
        """The process of a living task; None when it has none (any more)."""
        with self._lock:
            record = self._known.get(task_id)
            return record.pid if record and record.ended_at is None else None

    def keep(self) -> None:
        """Start the fork server again if it has ended. A launch would do that too, and wait for it."""
        with self._lock:
            if self._fork and not self._closed:
                self._fork.keep()

    def close(self) -> None:
        """Stop watching and give the folder to the next launcher. The tasks go on."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            os.eventfd_write(self._wake, 1)
        if threading.current_thread() is not self._watcher:
            self._watcher.join()
        with self._lock:
            for pidfd in self._pidfds:
                os.close(pidfd)
            self._pidfds.clear()
            if self._fork:
                self._fork.close()
        self._epoll.close()
        os.close(self._wake)
        os.close(self._owner_lock)

    def _own_folder(self) -> int:
        handle = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as taken:
            os.close(handle)
            raise Refused(
                f"another launcher owns {self._folder}: stop that control process, or use another folder"
            ) from taken
        return handle

    def _begin(self) -> None:
        """Take over what is there, once nobody can add to it any more; then begin to add."""
        try:
            lock = settle(self._folder)
        except TryLater:
            os.close(self._owner_lock)
            raise
        if self._fork:
            self._fork.start(self._folder, self._env, lock)
        else:
            os.close(lock)
        self._adopt()

    def _start(self, record: Record, launch: Launch) -> None:
        """Intent, process, pid, watch. Whatever fails leaves neither a process nor a record."""
        env = self._env | identity(launch) | self._tag() | {"MUSTER_TASK_ID": record.task_id}
        try:
            self._records.write(record)
            record.pid = self._spawn(self._command, env, self._logs / f"{record.task_id}.log", self._folder)
            # None when it has ended already: the watcher sees that at once.
            record.born = born(record.pid)
            self._records.write(record)
            self._watch_exit(record)
        except ProcessLookupError:
            # It has ended, and so has the fork server that would have kept its number for us.
            self._gone.append(record)
            os.eventfd_write(self._wake, 1)
        except OSError as error:
            if record.pid is not None:
                _signal_group(record, signal.SIGKILL)
                self._wait_for(record.pid)
            self._records.remove(record.task_id)
            what = f"cannot start {self._command[0]}: {error}"
            if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR):
                raise Refused(f"{what}; check the worker command") from error
            raise TryLater(what) from error
        self._known[record.task_id] = record

    def _tag(self) -> dict[str, str]:
        """Tells our tasks from those of another folder that have the same token."""
        return {"MUSTER_TASK_FOLDER": str(self._folder)}

    def _wait_for(self, pid: int) -> None:
        """Wait until a killed process has ended, whoever its parent is."""
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
            return
        if self._fork:
            self._fork.exit_code(pid)

    def _adopt(self) -> None:
        """Take over what an earlier launcher left; the watcher tells of the tasks that ended unseen."""
        by_environ: dict[str, int] | None = None
        for record in self._records.read():
            if record.pid is None:
                if by_environ is None:
                    by_environ = {e.get("MUSTER_TASK_ID", ""): pid for pid, e in leaders(self._tag())}
                record.pid = by_environ.get(record.task_id)
                if record.pid is None:
                    self._records.remove(record.task_id)  # never started: its token is still free
                    continue
                record.born = born(record.pid)
                self._records.write(record)
            self._known[record.task_id] = record
            if record.ended_at is not None:
                self._ended.append(record.task_id)
            elif not self._resume(record):
                self._gone.append(record)
        self._ended = deque(sorted(self._ended, key=lambda task_id: self._known[task_id].ended_at or 0))

    def _resume(self, record: Record) -> bool:
        """Watch a task that was started earlier; False when its process is gone."""
        if record.pid is None or record.born is None or born(record.pid) != record.born:
            return False
        with suppress(ProcessLookupError):
            self._watch_exit(record)
            if record.stop_reason is not None:
                # Perhaps the crash came before the first SIGTERM; a second one asks for nothing new.
                self._end_in_grace(record)
            return True
        return False

    def _end_in_grace(self, record: Record) -> None:
        _signal_group(record, signal.SIGTERM)
        self._kill_at[record.task_id] = self._clock.monotonic() + self._grace

    def _note(self, record: Record) -> None:
        """Write down what has happened anyway: a full disk must not keep tasks from being ended or seen."""
        try:
            self._records.write(record)
        except OSError:
            log.exception("cannot write the record of task %s; free some disk space", record.task_id)

    def _watch_exit(self, record: Record) -> None:
        assert record.pid is not None
        pidfd = os.pidfd_open(record.pid)
        self._pidfds[pidfd] = record.task_id
        self._epoll.register(pidfd, select.EPOLLIN)

    def _watch(self) -> None:
        """The watcher thread: sees exits, and kills what outstayed its grace."""
        while not self._closed:
            while self._gone:
                self._end(self._gone.popleft(), None)
            ready = self._epoll.poll(self._kill_overdue())
            for handle, _ in ready:
                if handle == self._wake:
                    os.eventfd_read(self._wake)
                else:
                    self._reap(handle)

    def _kill_overdue(self) -> float | None:
        """SIGKILL every task past its grace; seconds until the next one is due, None without any."""
        with self._lock:
            now = self._clock.monotonic()
            for task_id in [task_id for task_id, due in self._kill_at.items() if due <= now]:
                del self._kill_at[task_id]
                _signal_group(self._known[task_id], signal.SIGKILL)
            return min(self._kill_at.values()) - now if self._kill_at else None

    def _reap(self, pidfd: int) -> None:
        with self._lock:
            record = self._known[self._pidfds.pop(pidfd)]
            # A container would take its stragglers with it. Before the wait, while the zombie still
            # keeps the number of the group from being given to somebody else.
            _signal_group(record, signal.SIGKILL)
            self._epoll.unregister(pidfd)
            exit_code = self._exit_code(record, pidfd)
            os.close(pidfd)
        self._end(record, exit_code)

    def _exit_code(self, record: Record, pidfd: int) -> int | None:
        """The exit code of our own or the fork server's child; None for one whose parent was another."""
        try:
            end = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        except ChildProcessError:
            return self._fork.exit_code(record.pid) if self._fork and record.pid else None
        if end is None:
            return None
        return end.si_status if end.si_code == os.CLD_EXITED else 128 + end.si_status

    def _end(self, record: Record, exit_code: int | None) -> None:
        with self._lock:
            record.ended_at = self._clock.now()
            record.exit_code = exit_code
            self._kill_at.pop(record.task_id, None)
            self._ended.append(record.task_id)
            # Written before it is told: a crash between the two loses one report, which the next
            # sweep makes good; the other order could report one exit twice.
            self._note(record)
        if self._on_exit is not None:
            try:
                self._on_exit(record.view())
            except Exception:
                log.exception("on_exit failed for task %s; the watcher goes on", record.task_id)

    def _prune(self) -> None:
        oldest = self._clock.now() - STOPPED_VISIBLE.total_seconds()
        while self._ended and (self._known[self._ended[0]].ended_at or 0) <= oldest:
            task_id = self._ended.popleft()
            del self._known[task_id]
            self._records.remove(task_id)


def _signal_group(record: Record, number: signal.Signals) -> None:
    assert record.pid is not None
    with suppress(ProcessLookupError):  # the whole group has ended: nothing left to signal
        os.killpg(record.pid, number)
