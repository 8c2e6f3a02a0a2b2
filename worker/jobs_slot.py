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
_DETAILS = struct.Struct("qddq")  # token, started, limit, count
_JOB, _TOKEN, _COUNT, _STOP, _CANCEL = 0, 8, 32, 40, 48


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
        self._begun = self.count

    @classmethod
    def create(cls) -> Slot:
        fd = os.memfd_create("job-slot", 0)
        os.ftruncate(fd, _SIZE)
        return cls(fd)

    def close(self) -> None:
        self._page.close()
        os.close(self.fd)

    # Written by the child.

    def begin(self, job_id: str, token: int, started: float, limit: float) -> None:
        """The id goes in last: whoever sees it also sees the rest."""
        self._begun += 1
        _DETAILS.pack_into(self._page, _TOKEN, token, started, limit, self._begun)
        _INT.pack_into(self._page, _JOB, int(job_id))

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
        token, started, limit, _ = _DETAILS.unpack_from(self._page, _TOKEN)
        seen = Current(str(job_id), token, started, limit)
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
