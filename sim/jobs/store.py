"""The client of the job world: as the simulator's, and it can wait on a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sim.jobs.processes import park
from sim.store_world import SimClient, StoreWorld


class JobClient(SimClient):
    """Each round trip is one effect of the process that makes it."""

    def __init__(self, store: StoreWorld) -> None:
        super().__init__(store)
        self._waiting: dict[str, list[Callable[[], None]]] = {}

    def execute_command(self, *words: Any) -> Any:
        if words[0] != "BLPOP":
            return super().execute_command(*words)
        key, timeout = words[1], float(words[2])
        loop = self._store.world.loop
        until = loop.now + timeout
        while (word := super().execute_command("LPOP", key)) is None and loop.now < until:
            park(loop, self._waiting.setdefault(key, []), until - loop.now)
            if loop.now >= until:
                return None
        return word and [key, word]

    def wake(self, keys: Sequence[str]) -> None:
        """A step touched these keys: whoever waits on one of them looks again."""
        for key in keys:
            for wake in self._waiting.pop(key, ()):
                self._store.world.loop.after(0.0005, wake)
