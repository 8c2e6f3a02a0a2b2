"""How somebody who waits hears that another process wrote to the file: the kernel says so (inotify).

SQLite itself can only be asked. Asked often it costs a core, asked seldom it costs the job's time.
"""

from __future__ import annotations

import ctypes
import os
import select
import time
import weakref
from pathlib import Path

POLL_S = 0.002  # how often somebody who waits for another process looks, where nothing tells him
_SAFETY_S = 0.02  # and where the kernel tells him: a commit that waits long for its disk is told of too early
_SOON_S = 0.0002  # a log is written just before its commit counts: look again so soon, then later and later
_FINEST_POLL_S = 0.001  # poll() counts in milliseconds
_IN_MODIFY = 2


class LogWatch:
    """Wakes when the log is written. The log must exist, as it does while its file is open."""

    def __init__(self, log: Path) -> None:
        libc = ctypes.CDLL(None)
        self._events = select.poll()
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(libc, "inotify_init1") else -1
        self._told = False
        self._next = _SAFETY_S  # how long the next pause may be
        if self._fd >= 0:
            weakref.finalize(self, os.close, self._fd)
            self._told = libc.inotify_add_watch(self._fd, os.fsencode(log), _IN_MODIFY) >= 0
            self._events.register(self._fd, select.POLLIN)

    def pause(self, left: float) -> None:
        """Until it is worth to look again, at the latest after `left` seconds. Too early is possible."""
        if not self._told:  # another system, or every place for a watch is taken
            time.sleep(min(POLL_S, left))
            return
        pause, self._next = self._next, min(1.5 * self._next, _SAFETY_S)
        if pause < _FINEST_POLL_S:
            time.sleep(min(pause, left))
        elif self._events.poll(min(pause, left) * 1000):
            os.read(self._fd, 65536)
            self._next = _SOON_S
