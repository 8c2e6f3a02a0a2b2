"""The child of a job worker: claims, runs the processor, hands in. User code lives and dies in here.

It holds the claims itself, so a job costs one round trip (hand in the last, claim the next) and no
hop to the parent. The parent only watches the slot; whatever this process held when it died, the
parent settles.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import inspect
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from muster.errors import LostLease, TryLater
from muster.jobs import Finished, Jobs, Verdict, WorkerRegistration, WorkerStatus, WorkItem
from muster.jobs.ports import WorkPool
from muster.scrub import guard
from worker.jobs_backend import open_jobs
from worker.jobs_context import Context, JobCancelled, WorkerLeaving, peak_memory_mb, resolve
from worker.jobs_slot import Slot

_LONGEST_WAIT_S = 0.5  # an idle child looks this often for its parent, the stop flag and delayed jobs
_HAND_IN_AFTER_S = 0.05  # a finished result of a batch waits no longer than this for its siblings
_AWAY_S = 0.2  # between two tries while the backend is away
_ERROR_CHARS = 4000
_PR_SET_PDEATHSIG = 1


class Child:
    """One life of the child: from start to idle exit, stop, or the last allowed job."""

    def __init__(self, options: argparse.Namespace, slot: Slot, jobs: Jobs) -> None:
        self._options = options
        self._slot = slot
        self._registration = jobs.registration
        self._pool: WorkPool = jobs.work.pool(options.pool)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finished: list[Finished] = []
        processors = dict(options.processors)
        self._resolve = cache(lambda kind: resolve(processors, kind))

    def run(self) -> None:
        idle_since = time.monotonic()
        while not self._over():
            claimed = self._turn(self._room())
            if claimed:
                self._work_off(claimed)
                idle_since = time.monotonic()
                continue
            left = idle_since + self._options.idle_exit - time.monotonic()
            if left <= 0:
                claimed = self._last_claim()
                if not claimed:
                    return
                self._work_off(claimed)
                idle_since = time.monotonic()
            else:
                self._patiently(self._pool.wait, min(left, _LONGEST_WAIT_S))
        while self._finished:
            self._turn(0)

    def _over(self) -> bool:
        orphaned = os.getppid() != self._options.parent
        return self._slot.stopping or orphaned or self._room() == 0

    def _room(self) -> int:
        if self._options.max_jobs is None:
            return int(self._options.batch)
        return int(min(self._options.batch, max(0, self._options.max_jobs - self._slot.count)))

    def _last_claim(self) -> list[WorkItem]:
        """Leave the registry FIRST, then try once more.

        A push checks capacity after it wrote its job. If this claim does not see the job, the push came
        later, so its check sees this worker gone and launches another. There is no gap between the two.
        It may have launched another although this claim does see the job: then the pool can be full, and
        the job is for the one that is coming.
        """
        worker = self._options.worker_id
        self._patiently(self._registration.update_status, worker, WorkerStatus.TERMINATED)
        claimed = self._turn(self._room())
        if claimed and not self._patiently(self._come_back):
            self._settle([(job.id, job.token) for job in claimed], Verdict.RETURN, None)
            return []
        return claimed

    def _come_back(self) -> bool:
        worker, pool = self._options.worker_id, self._options.pool
        was = self._registration.get(worker)
        me = WorkerRegistration(worker, pool=pool)
        if was is not None:
            me = replace(
                me, host=was.host, pid=was.pid, capabilities=was.capabilities, started_at=was.started_at
            )
        return self._registration.join(me, self._pool.settings().max_workers)

    def _turn(self, want: int) -> list[WorkItem]:
        if not want and not self._finished:
            return []
        try:
            turn = self._pool.turn(self._options.worker_id, self._finished, want, self._options.visibility)
        except TryLater as away:
            logging.getLogger("job").warning("%s", away)
            self._recover()
            return []
        self._finished = []
        return turn.claimed

    def _recover(self) -> None:
        """Nobody knows whether that turn happened: keep the results still owed, return what it claimed."""
        time.sleep(_AWAY_S)
        held = {(c.id, c.token) for c in self._patiently(self._pool.extend, self._options.worker_id)}
        self._finished = [done for done in self._finished if (done.id, done.token) in held]
        unknown = held - {(done.id, done.token) for done in self._finished}
        self._settle(sorted(unknown), Verdict.RETURN, None)

    def _work_off(self, claimed: list[WorkItem]) -> None:
        begun = time.monotonic()
        for n, job in enumerate(claimed):
            if self._slot.stopping:
                self._settle([(rest.id, rest.token) for rest in claimed[n:]], Verdict.RETURN, None)
                return
            self._run(job)
            if time.monotonic() - begun > _HAND_IN_AFTER_S and n + 1 < len(claimed):
                self._turn(0)
                begun = time.monotonic()

    def _run(self, job: WorkItem) -> None:
        started = time.monotonic()
        limit = job.time_limit if job.time_limit is not None else self._options.time_limit
        self._slot.begin(job.id, job.token, started, limit)
        claim = [(job.id, job.token)]
        try:
            ctx = Context(job, self._pool, self._slot, self._options.results)
            result = self._resolve(job.kind)(job, ctx)
            if result is not None:
                if inspect.isawaitable(result):
                    result = self._event_loop().run_until_complete(result)
                json.dumps(result)
            if time.monotonic() - started > 1.0:
                done = {"fraction": 1.0, "note": "done", "memory_mb": peak_memory_mb()}
                self._patiently(self._pool.report, job.id, job.token, done)
            self._finished.append(Finished(job.id, job.token, result))
        except JobCancelled:
            self._settle(claim, Verdict.CANCEL, "cancelled while running")
        except WorkerLeaving:
            self._settle(claim, Verdict.RETURN, None)
        except LostLease as lost:
            logging.getLogger("job").warning("%s", lost)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever user code raises fails its job alone
            text = "".join(traceback.format_exception(error))[-_ERROR_CHARS:]
            self._settle(claim, Verdict.FAIL, f"{type(error).__name__}: {error}\n{text}")
        finally:
            self._slot.end()

    def _settle(self, claims: list[tuple[str, int]], verdict: Verdict, error: str | None) -> None:
        self._patiently(self._pool.settle, claims, verdict, error)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop

    def _patiently(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call the backend; while it is away, try again. Every step is safe to repeat: tokens see to it."""
        while True:
            try:
                return call(*args)
            except TryLater as away:
                logging.getLogger("job").warning("%s", away)
                time.sleep(_AWAY_S)
                if os.getppid() != self._options.parent:
                    raise


def main(argv: list[str]) -> int:
    options = parse(argv)
    guard()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # The parent decides about stopping; a signal to the whole group must not cut a job in half.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A parent killed without warning must not leave user code running unwatched.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != options.parent:
        return 1
    Child(options, Slot(options.slot), open_jobs(options.url)).run()
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The parent writes these as one JSON object: a person never starts a child."""
    given = json.loads(argv[0])
    return argparse.Namespace(**{**given, "results": Path(given["results"])})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
