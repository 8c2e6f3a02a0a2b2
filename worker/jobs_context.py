"""What a processor sees of its job: `module:function(job, ctx)`."""

from __future__ import annotations

import importlib
import logging
import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from muster.errors import LostLease, MusterError, Refused, TryLater
from muster.jobs import WorkItem, WorkPool
from worker.jobs_slot import Slot

#: Job type -> processor. One type, one processor; a worker may be given more with `--processor`.
PROCESSORS: Mapping[str, str] = {"echo": "worker.jobs_echo:run", "backtest": "worker.jobs_backtest:run"}

_PROGRESS_EVERY_S = 0.2  # progress is for eyes: more often only costs


class JobCancelled(MusterError):
    """Somebody cancelled this job. Let it pass: the worker records the cancellation."""


class WorkerLeaving(MusterError):
    """The worker was told to stop. Let it pass: the job goes back, with its last checkpoint."""


class Context:
    """Progress, checkpoint, cancellation, a folder for files, and a log, for one job."""

    def __init__(self, job: WorkItem, pool: WorkPool, slot: Slot, results: Path) -> None:
        self.job = job
        self._pool = pool
        self._slot = slot
        self._results = results
        self._reported = 0.0

    @property
    def resume_from(self) -> Any:
        """The last checkpoint of an earlier attempt, or None."""
        return self.job.checkpoint

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A log whose lines carry the job's id."""
        return logging.LoggerAdapter(logging.getLogger("job"), {"job": self.job.id})

    @property
    def cancelled(self) -> bool:
        return self._slot.cancelled(self.job.id)

    @property
    def folder(self) -> Path:
        """A folder for files of this job's result; made when first asked for."""
        path = self._results / self.job.pool / self.job.id
        path.mkdir(parents=True, exist_ok=True)
        return path

    def check(self) -> None:
        """Raise if the job should not go on: it was cancelled, or the worker has to leave."""
        if self.cancelled:
            raise JobCancelled(f"job {self.job.id} was cancelled")
        if self._slot.stopping:
            raise WorkerLeaving("the worker is stopping")

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the job is (0 to 1). Cheap to call: most calls do not leave the process."""
        now = time.monotonic()
        if now - self._reported >= _PROGRESS_EVERY_S:
            self._reported = now
            self._save(_progress(fraction, note), None)

    def checkpoint(self, value: Any, fraction: float | None = None, note: str = "") -> None:
        """Save `value`; the next attempt, or a resume, finds it in `resume_from`."""
        self._save(None if fraction is None else _progress(fraction, note), value)

    def _save(self, progress: dict[str, Any] | None, checkpoint: Any) -> None:
        """A backend that is away is no fault of the job: progress is left out, a checkpoint waits for it."""
        while True:
            try:
                if not self._pool.report(self.job.id, self.job.token, progress, checkpoint):
                    raise LostLease(f"job {self.job.id} was given to another worker; stop")
                return
            except TryLater as away:
                self.log.warning("%s", away)
                if checkpoint is None:
                    return
                time.sleep(_PROGRESS_EVERY_S)


def peak_memory_mb() -> float:
    """The most memory this process ever used."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)


def resolve(processors: Mapping[str, str], kind: str) -> Callable[[WorkItem, Context], Any]:
    """The function of a job type. An unknown type or a broken import fails the job with the reason."""
    try:
        module, _, name = processors[kind].partition(":")
    except KeyError:
        known = ", ".join(sorted(processors))
        raise Refused(f"no processor for jobs of type '{kind}'; this worker knows {known}") from None
    function: Callable[[WorkItem, Context], Any] = getattr(importlib.import_module(module), name)
    return function


def _progress(fraction: float, note: str) -> dict[str, Any]:
    return {"fraction": round(fraction, 4), "note": note, "memory_mb": peak_memory_mb()}
