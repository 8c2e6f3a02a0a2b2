"""Output of local workers, read from the launcher's log files."""

from __future__ import annotations

from pathlib import Path

from api.source import LogPage
from muster.errors import BadCommand

#: Most bytes one answer carries; a reader that follows gets the rest with its next call.
MOST_BYTES = 256 * 1024


def read(folder: Path, task_id: str, lines: int, cursor: str) -> LogPage:
    """The last `lines` of a task's log or, with a cursor of the same task, what came since.

    A cursor of another task starts this one's log from its beginning: the worker was replaced.
    """
    path = folder / f"{task_id}.log"
    if path.parent != folder or not path.exists():
        return LogPage(task_id, [], f"{task_id}:0")
    size = path.stat().st_size
    start = _offset(task_id, cursor) if cursor else max(0, size - MOST_BYTES)
    with path.open("rb") as log:
        log.seek(start)
        data = log.read(MOST_BYTES)
    if cursor:
        # A line still being written is left for the next call, unless it fills a whole answer.
        whole = data if len(data) == MOST_BYTES and b"\n" not in data else data[: data.rfind(b"\n") + 1]
        return LogPage(task_id, _lines(whole), f"{task_id}:{start + len(whole)}")
    whole = data[: data.rfind(b"\n") + 1] or data
    return LogPage(task_id, _lines(whole)[-lines:], f"{task_id}:{start + len(whole)}")


def _lines(data: bytes) -> list[str]:
    return data.decode("utf-8", "replace").splitlines()


def _offset(task_id: str, cursor: str) -> int:
    task, _, offset = cursor.rpartition(":")
    if not task or not offset.isascii() or not offset.isdecimal():
        raise BadCommand("cursor: not one of a log; take the cursor of the answer before, or leave it out")
    return int(offset) if task == task_id else 0
