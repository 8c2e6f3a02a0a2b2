"""Processes as /proc shows them: start one apart from us, recognise it again, find one by its task."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_PROC = Path("/proc")


def spawn(argv: Sequence[str], env: Mapping[str, str], log_path: Path, cwd: Path) -> int:
    """Start a process that leads its own session and group, writing to `log_path`; its pid.

    Whatever takes the place of this function must do the same, and must make `env` visible in
    /proc/<pid>/environ: that is how a process is found whose pid was never written down.
    """
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # The launcher waits for the exit itself. A Popen without a return code would be waited for a
    # second time when it is collected, and take the exit code away.
    process.returncode = 0
    return process.pid


def born(pid: int) -> str | None:
    """An identity no later process with the same pid has; None when it is gone or a zombie."""
    stat = _stat(pid)
    if stat is None or stat[0] in "ZX":
        return None
    boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{boot}/{stat[19]}"


def leaders(variables: Mapping[str, str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Living session leaders with these variables in their environment: pid and environment.

    Only leaders, because the children of a task inherit its environment.
    """
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        pid = int(entry.name)
        stat = _stat(pid)
        if stat is None or stat[0] in "ZX" or int(stat[3]) != pid:
            continue
        try:
            raw = _environ(entry)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended while we looked, or it is not ours
        pairs = (os.fsdecode(item).partition("=") for item in raw.split(b"\0") if item)
        environ = {name: value for name, _, value in pairs}
        if all(environ.get(name) == value for name, value in variables.items()):
            yield pid, environ


def _environ(entry: Path) -> bytes:
    """The raw environment. Empty for an instant after exec, until the kernel has laid it out: look again."""
    deadline = time.monotonic() + 0.1
    while not (raw := (entry / "environ").read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.001)
    return raw


def _stat(pid: int) -> list[str] | None:
    """/proc/<pid>/stat from the state on: 0 state, 3 session, 19 start time in ticks since boot."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name in parentheses may itself contain spaces and parentheses.
    return text.rpartition(")")[2].split()
