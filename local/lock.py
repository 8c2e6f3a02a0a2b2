"""One engine per folder: an exclusive lock that the kernel frees, however its holder ends."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from muster.errors import Refused


class FolderLock:
    """Exclusive hold on `folder`, by flock on `<folder>/lock`; the file tells who holds it and since when.

    The lock belongs to the open file, so it ends with the holder, also by SIGKILL; the words in the file
    may outlive it and mean nothing then. Children started by exec do not inherit it; a child that is only
    forked would keep it, so the engine must not fork without exec.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: IO[str] | None = None

    def acquire(self) -> FolderLock:
        """Take the lock, or raise `Refused` naming its holder. Never waits."""
        if self._file is not None:
            raise Refused(f"{self.folder} is already held by this lock")
        self.folder.mkdir(parents=True, exist_ok=True)
        file = (self.folder / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held_by = _holder(file)
            file.close()
            raise Refused(
                f"{self.folder} is held by {held_by}; stop that one, or choose another folder with --dir"
            ) from None
        # In place, never by rename: a new inode would be a second lock.
        file.seek(0)
        file.truncate()
        json.dump(
            {
                "pid": os.getpid(),
                "command": " ".join(sys.argv),
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
            },
            file,
        )
        file.flush()
        self._file = file
        return self

    @property
    def held(self) -> bool:
        """Whether this object holds the folder."""
        return self._file is not None

    def release(self) -> None:
        """Give the folder back. Does nothing when it is not held."""
        if self._file is not None:
            self._file.truncate(0)
            self._file.close()
            self._file = None

    def __enter__(self) -> FolderLock:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


def _holder(file: IO[str]) -> str:
    file.seek(0)
    try:
        told = json.load(file)
        return f"pid {told['pid']} ({told['command']}) since {told['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process that has only just taken it"
