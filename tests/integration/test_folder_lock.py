"""One engine per folder, by real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from local.lock import FolderLock
from muster.errors import Refused

HOLD = """
import subprocess, sys
from pathlib import Path
from local.lock import FolderLock
lock = FolderLock(Path(sys.argv[1])).acquire()
child = subprocess.Popen(["sleep", "60"])
print(child.pid, flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another process that holds the folder, and the pid of a child it started."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdin is not None
    with process.stdin, process.stdout:
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            os.kill(child, signal.SIGKILL)
            process.kill()
            process.wait(10)


def test_a_second_holder_is_told_who_has_it_and_since_when(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, _):
        with pytest.raises(Refused) as refused:
            FolderLock(tmp_path).acquire()
        assert re.search(rf"held by pid {process.pid} \(.+\) since 20\d\d-\d\d-\d\dT", str(refused.value))
        assert "--dir" in str(refused.value)
        assert f'"pid": {process.pid}' in (tmp_path / "lock").read_text()


def test_a_killed_holder_frees_it_although_its_children_live(tmp_path: Path) -> None:
    with holder(tmp_path) as (process, child):
        process.kill()
        process.wait(10)
        os.kill(child, 0)
        with FolderLock(tmp_path):
            assert f'"pid": {os.getpid()}' in (tmp_path / "lock").read_text()


def test_a_released_folder_can_be_taken_again(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path / "new").acquire()
    with pytest.raises(Refused, match=f"pid {os.getpid()} "):
        FolderLock(tmp_path / "new").acquire()
    with pytest.raises(Refused, match="already"):
        lock.acquire()
    lock.release()
    lock.release()
    with FolderLock(tmp_path / "new"):
        pass


def test_a_holder_that_has_not_written_its_name_is_refused_all_the_same(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        (tmp_path / "lock").write_text("")
        with pytest.raises(Refused, match="only just"):
            FolderLock(tmp_path).acquire()
