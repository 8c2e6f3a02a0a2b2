"""Lets the real job code run in simulated worlds: virtual processes, no output, fewer polls."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest.mock import patch

from muster.jobs import capacity
from sim.jobs import processes
from worker import jobs, jobs_child, jobs_context

_LOGGERS = ("job", "job-worker", "muster.jobs.capacity", "muster.jobs.service")


@contextmanager
def installed() -> Iterator[None]:
    """As long as this lasts, job worlds can be run."""
    with ExitStack() as stack:
        for target, name, new in (
            (jobs, "time", processes.TIME),
            (jobs_child, "time", processes.TIME),
            (jobs_context, "time", processes.TIME),
            (jobs, "threading", processes.THREADING),
            (jobs, "queue", processes.QUEUE),
            (jobs, "signal", processes.SIGNAL),
            (jobs, "subprocess", processes.SUBPROCESS),
            (jobs, "os", processes.PARENT_OS),
            (jobs_child, "os", processes.CHILD_OS),
            (jobs, "socket", SimpleNamespace(gethostname=lambda: "host")),
            (jobs, "Slot", processes.SimSlot),
            (jobs, "SystemClock", lambda: processes.running().clock),
            (jobs, "open_jobs", lambda url: processes.here().jobs_for(processes.running().clock)),  # noqa: ARG005
            (jobs, "_rss_mb", lambda pid: 0.0),  # noqa: ARG005
            (jobs_context, "peak_memory_mb", lambda: 0.0),
            (jobs_child, "peak_memory_mb", lambda: 0.0),
            (jobs_child, "traceback", SimpleNamespace(format_exception=lambda error: [repr(error)])),
            (jobs, "uuid", SimpleNamespace(uuid4=lambda: processes.here().new_id())),
            (capacity, "uuid", SimpleNamespace(uuid4=lambda: processes.here().new_id())),
            # Polls five times as rare: the same code, in a fifth of the steps.
            (jobs, "_TICK_S", 0.5),
            (jobs_child, "_LONGEST_WAIT_S", 2.5),
        ):
            stack.enter_context(patch.object(target, name, new))
        for name in _LOGGERS:
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        yield
