"""What the process launcher writes down about each task, so that it can find its tasks again."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from muster.launchers.port import Launch, TaskKind, TaskStatus, TaskView

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Record:
    """One task. Without `pid` it is only an intent: written before the process is started."""

    task_id: str
    kind: TaskKind
    owner: str
    epoch: int
    created_at: float
    pid: int | None = None
    born: str | None = None  #: the identity of the process, see `procfs.born`
    stop_reason: str | None = None
    ended_at: float | None = None
    exit_code: int | None = None

    @classmethod
    def of(cls, task_id: str, launch: Launch, now: float) -> Record:
        return cls(task_id, launch.kind, launch.owner, launch.epoch, now)

    def view(self) -> TaskView:
        ended = self.ended_at is not None
        return TaskView(
            task_id=self.task_id,
            status=TaskStatus.STOPPED if ended else TaskStatus.RUNNING,
            started_at=self.created_at,
            stopped_reason=(self.stop_reason or "the process ended") if ended else None,
            exit_code=self.exit_code,
            owner=self.owner,
            kind=self.kind,
            epoch=self.epoch,
        )


class Records:
    """One JSON file per task, replaced as a whole.

    Not synced to the disk: a record must survive the crash of the control process, and after the
    crash of the machine there is no process left that it could describe.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, record: Record) -> None:
        path = self._path(record.task_id)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(record)), encoding="utf-8")
        os.replace(draft, path)

    def remove(self, task_id: str) -> None:
        self._path(task_id).unlink(missing_ok=True)

    def read(self) -> Iterator[Record]:
        """Every record. One that the crash of the machine left unreadable is removed."""
        for path in sorted(self._folder.glob("*.json")):
            try:
                fields = json.loads(path.read_text(encoding="utf-8"))
                fields["kind"] = TaskKind(fields["kind"])
                record = Record(**fields)
            except (ValueError, TypeError, KeyError) as broken:
                log.warning("removed the unreadable task record %s: %s", path, broken)
                path.unlink()
                continue
            yield record

    def _path(self, task_id: str) -> Path:
        return self._folder / f"{task_id}.json"
