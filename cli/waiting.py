"""Waiting for a command to have done its work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from cli.session import Cli, Code, Failure, path

_LOOK_EVERY_S = 0.2

Worker = dict[str, Any]
#: Is the command done, seeing this worker now and that one (None: unknown) before it went?
Done = Callable[[Worker, Worker | None], bool]


def is_started(now: Worker, before: Worker | None) -> bool:  # noqa: ARG001 - a Done
    return bool(now["want"] == "running" and now["phase"] == "ready")


def is_restarted(now: Worker, before: Worker | None) -> bool:
    return is_started(now, before) and _moved(now, before)


def is_stopped(now: Worker, before: Worker | None) -> bool:  # noqa: ARG001 - a Done
    return bool(now["want"] == "stopped" and now["phase"] == "stopped")


def _moved(now: Worker, before: Worker | None) -> bool:
    """Has a start or a stop begun since?"""
    return bool(now["epoch"] > (before["epoch"] if before else 0))


class Waiting:
    """Looks at some users before a command goes, and again until it is done for all of them."""

    def __init__(self, cli: Cli, users: Sequence[str], done: Done) -> None:
        self._cli = cli
        self._done = done
        self._before = {user: self._look(user) for user in users}
        self.seen = dict(self._before)

    def well(self, user: str) -> bool:
        """Has the command done its work for this user?"""
        now = self.seen[user]
        return now is not None and self._done(now, self._before[user])

    def wait(self, what: str, timeout: float) -> None:
        """Return when it is done, given up or too late for every user."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        left = list(self.seen)
        give_up_at = time.monotonic() + timeout
        parts = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*parts, console=self._cli.words, transient=True) as bar:
            task = bar.add_task(what, total=len(left))
            while True:
                self.seen |= {user: self._look(user) for user in left}
                left = [user for user in left if not self._over(user)]
                bar.update(task, completed=len(self.seen) - len(left))
                if not left or time.monotonic() >= give_up_at:
                    return
                time.sleep(_LOOK_EVERY_S)

    def _over(self, user: str) -> bool:
        """Done, or given up since the command went: waiting longer changes nothing."""
        now = self.seen[user]
        given_up = now is not None and now["phase"] == "failed" and _moved(now, self._before[user])
        return given_up or self.well(user)

    def _look(self, user: str) -> Worker | None:
        try:
            found: Worker = self._cli.call("GET", path(user))
        except Failure as failure:
            if failure.code is Code.NOT_FOUND:
                return None
            raise
        return found
