"""Capacity: as many workers as there is work, up to the pool's maximum, and none when there is none."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from muster.clock import Clock
from muster.errors import Refused
from muster.jobs.model import STALE_AFTER, WorkerRegistration, WorkerStatus
from muster.jobs.ports import Jobs
from muster.jobs.reaper import Reaped, reap

log = logging.getLogger(__name__)

#: Starts one worker: (pool, worker id, pin). The pin is an image or a task definition, on one machine a
#: virtual environment; None is the default.
Launch = Callable[[str, str, str | None], None]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one check saw and did. `failed` holds the reason of every launch that did not happen."""

    wanted: int
    launched: list[str]
    failed: list[str] = field(default_factory=list)


def wanted_workers(queued: int, running: int, max_workers: int) -> int:
    """min(max_workers, queued + running): one worker per open job, within the pool's limit."""
    return max(0, min(max_workers, queued + running))


def ensure_capacity(jobs: Jobs, pool: str, launch: Launch) -> Capacity:
    """Launch what is missing: `wanted_workers` minus the live ones, starting ones counted.

    The places are reserved in one step before anything is launched, so checks that run at once never
    launch more than the maximum together. Never raises: the job is durable, and the next enqueue, the
    next boot or the slow schedule tries again.
    """
    try:
        return _ensure(jobs, pool, launch)
    except Exception as error:  # noqa: BLE001 - best effort by contract; the caller's job is already safe
        log.warning("capacity check of pool %s failed, the next one tries again: %s", pool, error)
        return Capacity(0, [], [str(error)])


def _ensure(jobs: Jobs, pool: str, launch: Launch) -> Capacity:
    work = jobs.work.pool(pool)
    settings = work.settings()
    wanted = wanted_workers(work.size(), work.running(), settings.max_workers)
    if wanted == 0:
        return Capacity(0, [])
    candidates = [WorkerRegistration(f"{pool}-{uuid.uuid4().hex[:12]}", pool=pool) for _ in range(wanted)]
    launched, failed = [], []
    for worker_id in jobs.registration.reserve(pool, wanted, candidates):
        try:
            launch(pool, worker_id, settings.pin)
            launched.append(worker_id)
        except Exception as error:  # noqa: BLE001 - one failed launch must not stop the others
            log.warning("launch of %s for pool %s failed: %s", worker_id, pool, error)
            jobs.registration.update_status(worker_id, WorkerStatus.TERMINATED)
            failed.append(str(error))
    return Capacity(wanted, launched, failed)


@dataclass(frozen=True, slots=True)
class Checked:
    """One safety check: what the reaper did, then what capacity did."""

    reaped: Reaped
    capacity: Capacity


def check(
    jobs: Jobs,
    pool: str,
    launch: Launch,
    clock: Clock,
    stale_after: float = STALE_AFTER.total_seconds(),
    *,
    trim: bool = True,
) -> Checked:
    """Reap, then ensure capacity: what runs on every enqueue, every boot and on the slow schedule.

    An enqueue passes `trim=False`: walking the history is no work for whoever adds a job.
    """
    reaped = reap(jobs, pool, clock, stale_after, trim=trim)
    return Checked(reaped, ensure_capacity(jobs, pool, launch))


#: A variable of every job worker that a `ProcessLauncher` has started, and of the successors it starts
#: itself: where the first one's logs are, and so theirs. Whoever must end them all finds them by it.
HOME_VARIABLE = "MUSTER_JOBS_HOME"


@dataclass(frozen=True, slots=True)
class ProcessLauncher:
    """Starts job workers as processes of this machine, each in its own session so that it outlives us."""

    url: str
    options: tuple[str, ...] = ()
    log_folder: Path = field(default_factory=lambda: Path(os.environ.get(HOME_VARIABLE, ".muster/logs")))

    def __call__(self, pool: str, worker_id: str, pin: str | None) -> None:
        python = interpreter(pin) if pin else sys.executable
        command = [python, "-m", "worker.jobs", "--url", self.url, "--pool", pool]
        command += ["--worker-id", worker_id, *self.options]
        if pin:
            command += ["--pin", pin]
        self.log_folder.mkdir(parents=True, exist_ok=True)
        env = {HOME_VARIABLE: str(self.log_folder.resolve())} | os.environ
        with (self.log_folder / f"{worker_id}.log").open("ab") as out:
            subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )


def interpreter(pin: str) -> str:
    """The Python of a pinned virtual environment, or the pinned Python itself. Refused if there is none.

    A release on one machine is a new environment beside the old one: running workers keep theirs.
    """
    path = Path(pin)
    python = path / "bin" / "python" if path.is_dir() else path
    if not path.is_absolute() or not os.access(python, os.X_OK) or python.is_dir():
        raise Refused(
            f"pin {pin}: on one machine a pin is the whole path of a virtual environment, or of its Python; "
            "make one with 'python -m venv PATH' and install the release into it"
        )
    return str(python)
