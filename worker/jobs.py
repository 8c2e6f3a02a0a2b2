"""The job worker: `python -m worker jobs --pool P`. Registers, watches its child, and leaves when idle.

parent (this file)                          child (jobs_child.py)
registers, heartbeats, extends claims       claims, runs user code, hands in results
time limit, memory limit, cancel, SIGTERM   may crash, hang or be killed: only its job fails
          '------------- one shared page (jobs_slot.py) -------------'
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import TypeVar

from muster.blueprint import DRAIN_GRACE
from muster.clock import SystemClock
from muster.errors import TryLater
from muster.jobs import Verdict, WorkerRegistration, WorkerStatus
from muster.jobs.capacity import Launch, ProcessLauncher, check
from muster.jobs.model import HEARTBEAT, IDLE_EXIT, SAFETY_CHECK, TIME_LIMIT
from muster.jobs.ports import WorkPool
from muster.scrub import guard
from worker.jobs_backend import open_jobs
from worker.jobs_context import PROCESSORS
from worker.jobs_slot import Current, Slot

log = logging.getLogger("job-worker")

_TICK_S = 0.1  # how often the parent looks at its child
_CANCEL_POLL_S = 2.0  # how soon a running job hears that it was cancelled
_CANCEL_GRACE_S = 10.0  # then a processor that does not listen is killed
_AWAY_S = 300.0  # without its backend for so long it leaves; a check finds workers when it is back
_CRASHES = 3  # children in a row that died without a job: the worker itself is broken
LEFT, BROKEN, REAPED = 0, 1, 4

T = TypeVar("T")


class _News(Enum):
    STOP = auto()  #: the worker was asked to leave
    ENDED = auto()  #: there is nothing left to beat for


class JobWorker:
    """One worker's life. `run` returns the exit code: 0 left, 1 broken, 4 was declared lost."""

    def __init__(self, options: argparse.Namespace, launch: Launch | None) -> None:
        self._options = options
        self._launch = launch
        self._clock = SystemClock()
        self._jobs = open_jobs(options.url)
        self._pool: WorkPool = self._jobs.work.pool(options.pool)
        self._started_at = self._clock.now()
        self._slot = Slot.create()
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()  # for the heartbeat
        self._lost = threading.Event()
        self._abandoned: Current | None = None  # its claim is somebody else's: kill without settling
        self._stop_by: float | None = None
        self._cancel_by: tuple[str, float] | None = None
        self._memory_mb = 0.0

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._asked_to_stop)
        signal.signal(signal.SIGINT, self._asked_to_stop)
        if not self._register():
            log.info("pool %s has its maximum of workers: this one came too late", self._options.pool)
            return LEFT
        beat = threading.Thread(target=self._beat_until_ended, name="heartbeat", daemon=True)
        beat.start()
        try:
            return self._supervise()
        finally:
            self._news.put(_News.ENDED)
            beat.join()
            self._patiently(self._leave)
            if self._full() and self._stop_by is None:
                self._patiently(self._check)  # what it leaves behind needs a successor
            self._slot.close()

    def _register(self) -> bool:
        options = self._options
        if options.launched:
            was = self._jobs.registration.get(options.worker_id)
            if was is not None and was.status is WorkerStatus.LOST:
                # Launched too slowly, or restarted after it was lost: the old id and its claims are gone.
                options.worker_id = _new_id(options.pool)
        if not self._join():
            return False
        if options.launched:
            # Restarted in place: what the life before held would be extended for ever, and never worked on.
            self._pool.release_by_worker(options.worker_id)
        self._check()
        return True

    def _join(self) -> bool:
        """A worker that was launched has a place; if that was given away meanwhile, the pool may be full."""
        me = WorkerRegistration(
            self._options.worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            capabilities=tuple(self._options.capability),
            pool=self._options.pool,
            started_at=self._started_at,
        )
        if self._options.launched:
            return self._jobs.registration.join(me, self._pool.settings().max_workers)
        self._jobs.registration.register(me)
        return True

    def _supervise(self) -> int:
        """Keep a child until it leaves by itself. A crash is restarted in place."""
        barren = 0
        while True:
            begun = self._slot.count
            child = self._start_child()
            try:
                code = self._watch(child)
            finally:
                child.kill()
                child.wait()
            if self._lost.is_set():
                log.error("declared lost by the reaper; a restart gets a new id")
                return REAPED
            if code == 0:
                return LEFT
            settled = self._patiently(self._settle_for, child, code)
            barren = 0 if self._slot.count > begun else barren + 1
            if barren >= _CRASHES:
                log.error("%d children in a row died before their first job; see the lines above", barren)
                return BROKEN
            if self._full() or self._stop_by is not None:
                return LEFT
            # What could not be settled must run out, so nobody may extend it any more. And a child that was
            # leaving when it died has given the place away.
            if not (settled and self._patiently(self._join)):
                return LEFT

    def _full(self) -> bool:
        return self._options.max_jobs is not None and self._slot.count >= self._options.max_jobs

    def _start_child(self) -> subprocess.Popen[bytes]:
        options = self._options
        told = {
            "url": options.url, "pool": options.pool, "worker_id": options.worker_id, "slot": self._slot.fd,
            "parent": os.getpid(), "batch": options.batch, "max_jobs": options.max_jobs,
            "idle_exit": options.idle_exit, "visibility": 2 * options.heartbeat,
            "time_limit": options.time_limit, "results": str(options.results),
            "processors": options.processors,
        }  # fmt: skip
        self._slot.end()
        command = [sys.executable, "-m", "worker.jobs_child", json.dumps(told)]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[self._slot.fd])

    def _watch(self, child: subprocess.Popen[bytes]) -> int | str:
        """Until the child ends: its exit code, or the reason why it had to be killed."""
        while True:
            try:
                return child.wait(timeout=_TICK_S)
            except subprocess.TimeoutExpired:
                pass
            self._memory_mb = max(_rss_mb(child.pid), 0.0)
            reason = self._reason_to_kill()
            if reason or self._lost.is_set():
                child.kill()
                child.wait()
                return reason or "the worker was declared lost"

    def _reason_to_kill(self) -> str | None:
        now = time.monotonic()
        current = self._slot.current
        if self._stop_by is not None and now > self._stop_by:
            return "the worker had to leave"
        if current is None:
            return None
        if now - current.started > current.limit:
            return f"time limit of {current.limit:g} s is over"
        if self._options.memory_limit_mb and self._memory_mb > self._options.memory_limit_mb:
            return f"uses {self._memory_mb:.0f} MB, more than {self._options.memory_limit_mb:g} MB"
        if self._abandoned is not None and self._abandoned == current:
            return "its claim was given to another worker"
        if self._cancel_by is not None and self._cancel_by[0] == current.job_id and now > self._cancel_by[1]:
            return "cancelled, and it did not listen"
        return None

    def _settle_for(self, child: subprocess.Popen[bytes], code: int | str) -> bool:
        """The child is dead: fail the job it was on, return the ones it had not begun."""
        current = self._slot.current
        for held in self._pool.extend(self._options.worker_id, 2 * self._options.heartbeat):
            claim = [(held.id, held.token)]
            if current is None or (held.id, held.token) != (current.job_id, current.token):
                self._pool.settle(claim, Verdict.RETURN)
            elif self._stop_by is not None and isinstance(code, str):
                self._pool.settle(claim, Verdict.RETURN, code)
            elif held.cancel_requested:
                self._pool.settle(claim, Verdict.CANCEL, "cancelled while running")
            else:
                self._pool.settle(claim, Verdict.FAIL, self._obituary(child, code))
        return True

    def _obituary(self, child: subprocess.Popen[bytes], code: int | str) -> str:
        memory = f"{self._memory_mb:.0f} MB when last seen"
        if isinstance(code, str):
            return f"killed: {code} ({memory})"
        if code == -signal.SIGKILL:
            return (
                f"process {child.pid} was killed by SIGKILL, as the kernel does when memory ends ({memory})"
            )
        if code < 0:
            return f"process {child.pid} died of {signal.Signals(-code).name} ({memory})"
        return f"process {child.pid} exited with {code} in the middle of the job ({memory})"

    def _beat_until_ended(self) -> None:
        next_beat = next_look = 0.0
        heard = time.monotonic()
        next_check = time.monotonic() + SAFETY_CHECK.total_seconds()
        pause = min(self._options.heartbeat, _CANCEL_POLL_S)
        while (news := self._wait(min(next_beat, next_look) - time.monotonic())) is not _News.ENDED:
            now = time.monotonic()
            if news is _News.STOP:
                next_beat = 0.0  # whoever looks at the pool learns it now
            next_look = now + pause
            try:
                self._look_after_claims()
                if now >= next_beat:
                    self._beat()
                    next_beat = now + self._options.heartbeat
                if now >= next_check:
                    next_check = now + SAFETY_CHECK.total_seconds()
                    self._check()
                heard = now
            except TryLater as away:
                log.warning("%s", away)
                next_beat = max(next_beat, next_look)  # due still, but not before the next look
                if now - heard > _AWAY_S:
                    self._asked_to_stop()

    def _wait(self, seconds: float) -> _News | None:
        """What was put in the meantime, or None when the time is over."""
        try:
            return self._news.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def _beat(self) -> None:
        current = self._slot.current
        told = {
            "current_task_id": current.job_id if current else None,
            "memory_mb": round(self._memory_mb, 1),
            "pin": self._options.pin,
        }
        status = self._jobs.registration.heartbeat(self._options.worker_id, told)
        if status is WorkerStatus.LOST:
            self._lost.set()
        elif status is WorkerStatus.ACTIVE and self._stop_by is not None:
            self._jobs.registration.update_status(self._options.worker_id, WorkerStatus.TERMINATING)

    def _look_after_claims(self) -> None:
        before = self._slot.current
        held = self._pool.extend(self._options.worker_id, 2 * self._options.heartbeat)
        if before is None or self._slot.current != before:
            return
        mine = {(claim.id, claim.token): claim for claim in held}.get((before.job_id, before.token))
        if mine is None:
            self._abandoned = before
        elif mine.cancel_requested and not self._slot.cancelled(mine.id):
            self._cancel_by = (mine.id, time.monotonic() + _CANCEL_GRACE_S)
            self._slot.cancel(mine.id)

    def _leave(self) -> None:
        self._jobs.registration.update_status(self._options.worker_id, WorkerStatus.TERMINATED)

    def _patiently(self, call: Callable[..., T], *args: object) -> T | None:
        """Try again while the backend is away, as long as our claims could live; then the reaper does it."""
        deadline = time.monotonic() + 2 * self._options.heartbeat
        while True:
            try:
                return call(*args)
            except TryLater as away:
                log.warning("%s", away)
                if time.monotonic() > deadline:
                    return None
                time.sleep(_TICK_S)

    def _check(self) -> None:
        """The pool's safety net: every boot, and now and then, somebody looks after the others."""
        if self._launch is not None:
            check(self._jobs, self._options.pool, self._launch, self._clock, self._options.stale_after)

    def _asked_to_stop(self, *_: object) -> None:
        if self._stop_by is None:
            self._stop_by = time.monotonic() + self._options.drain
            self._slot.stop()
            self._news.put(_News.STOP)  # a queue's put may be interrupted by itself, an event's set may not


def _rss_mb(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except OSError:
        return 0.0  # it ended between the look and the read
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m worker jobs", description="Run jobs of one pool.")
    own_pool = os.environ.get("MUSTER_POOL")
    parser.add_argument("--pool", default=own_pool, required=own_pool is None)
    parser.add_argument("--url", default=os.environ.get("MUSTER_JOBS_URL", "sqlite:///.muster/jobs.db"))
    parser.add_argument(
        "--worker-id",
        default=os.environ.get("MUSTER_LAUNCH_ID"),
        help="the id reserved for this worker; a new one by default",
    )
    parser.add_argument("--max-jobs", type=int, help="leave after this many; by default drain until idle")
    parser.add_argument("--idle-exit", type=float, default=IDLE_EXIT.total_seconds(), help="seconds")
    parser.add_argument("--heartbeat", type=float, default=HEARTBEAT.total_seconds(), help="seconds")
    parser.add_argument("--stale-after", type=float, help="seconds; twice the heartbeat by default")
    parser.add_argument(
        "--time-limit", type=float, default=TIME_LIMIT.total_seconds(), help="seconds per job"
    )
    parser.add_argument("--memory-limit-mb", type=float, default=0.0, help="kill a job above; 0 is no limit")
    parser.add_argument(
        "--drain", type=float, default=DRAIN_GRACE.total_seconds(), help="seconds after SIGTERM"
    )
    parser.add_argument("--batch", type=int, default=1, help="jobs claimed at once; more for tiny jobs")
    parser.add_argument("--capability", action="append", default=[])
    parser.add_argument("--processor", action="append", default=[], metavar="TYPE=MODULE:FUNCTION")
    parser.add_argument("--results", type=Path, default=Path(".muster/results"))
    parser.add_argument("--pin", help="the image or task definition this worker was started from")
    parser.add_argument("--no-launch", action="store_true", help="do not look after the pool's other workers")
    options = parser.parse_args(argv)
    wrong = [given for given in options.processor if "=" not in given or ":" not in given]
    if wrong:
        parser.error(f"--processor {wrong[0]}: write TYPE=MODULE:FUNCTION")
    options.processors = {**PROCESSORS, **dict(given.split("=", 1) for given in options.processor)}
    options.launched = options.worker_id is not None
    options.worker_id = options.worker_id or _new_id(options.pool)
    if options.stale_after is None:
        options.stale_after = 2 * options.heartbeat
    return options


def _new_id(pool: str) -> str:
    return f"{pool}-{uuid.uuid4().hex[:12]}"


def same_options(argv: list[str]) -> tuple[str, ...]:
    """What a worker started by this one is told: the same, but who it is and where it works."""
    kept: list[str] = []
    skip = False
    for word in argv:
        own = word.split("=")[0] in ("--pool", "--url", "--worker-id", "--pin")
        if not own and not skip:
            kept.append(word)
        skip = own and "=" not in word
    return tuple(kept)


def main(argv: list[str]) -> int:
    options = parse(argv)
    guard()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    launch = None if options.no_launch else ProcessLauncher(options.url, same_options(argv))
    return JobWorker(options, launch).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
