"""A page of memory shared by a job worker and the child that runs its jobs.

The child says what it is doing, so that the parent can judge it without asking: a child that hangs,
hogs the interpreter or is dead cannot answer. Every field is written by one side only.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass

_SIZE = mmap.PAGESIZE
_INT = struct.Struct("q")
_REAL = struct.Struct("d")
_JOB, _TOKEN, _STARTED, _LIMIT, _COUNT, _STOP, _CANCEL = range(0, 56, 8)


@dataclass(frozen=True, slots=True)
class Current:
    """The job the child is on: since when (monotonic seconds), and how long it may take."""

    job_id: str
    token: int
    started: float
    limit: float


class Slot:
    """The page. `create` makes one in the parent; `Slot(fd)` opens it in the child."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, _SIZE)

    @classmethod
    def create(cls) -> Slot:
        fd = os.memfd_create("job-slot", 0)
        os.ftruncate(fd, _SIZE)
        return cls(fd)

    def close(self) -> None:
        self._page.close()
        os.close(self.fd)

    # Written by the child.

    def begin(self, current: Current) -> None:
        """The id goes in last: whoever sees it also sees the rest."""
        _INT.pack_into(self._page, _TOKEN, current.token)
        _REAL.pack_into(self._page, _STARTED, current.started)
        _REAL.pack_into(self._page, _LIMIT, current.limit)
        _INT.pack_into(self._page, _COUNT, self.count + 1)
        _INT.pack_into(self._page, _JOB, int(current.job_id))

    def end(self) -> None:
        _INT.pack_into(self._page, _JOB, 0)

    # Written by the parent.

    def stop(self) -> None:
        _INT.pack_into(self._page, _STOP, 1)

    def cancel(self, job_id: str) -> None:
        _INT.pack_into(self._page, _CANCEL, int(job_id))

    # Read by both.

    @property
    def current(self) -> Current | None:
        """The job in the child's hands, or None between jobs and while it is being written."""
        job_id = self._int(_JOB)
        seen = Current(str(job_id), self._int(_TOKEN), self._real(_STARTED), self._real(_LIMIT))
        return seen if job_id and self._int(_JOB) == job_id else None

    @property
    def count(self) -> int:
        """Jobs begun over all children of this worker."""
        return self._int(_COUNT)

    @property
    def stopping(self) -> bool:
        return self._int(_STOP) == 1

    def cancelled(self, job_id: str) -> bool:
        return self._int(_CANCEL) == int(job_id)

    def _int(self, offset: int) -> int:
        return int(_INT.unpack_from(self._page, offset)[0])

    def _real(self, offset: int) -> float:
        return float(_REAL.unpack_from(self._page, offset)[0])
