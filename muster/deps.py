"""What the use cases need from outside, in one object. Drivers build it; the core only uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from muster.claims import ClaimChannel
from muster.clock import Clock
from muster.commands import Command
from muster.launchers.port import Launcher
from muster.store import Store
from muster.traces import NO_SPANS, Spans


class CommandSender(Protocol):
    """Puts commands on worker-control.fifo, grouped by user."""

    def send(self, commands: Sequence[Command]) -> None:
        """Send them all, in tens. Raises `TryLater` if one was not taken; repeats are deduplicated."""
        ...


@dataclass(frozen=True, slots=True)
class Deps:
    """The outside world of the core."""

    store: Store
    launcher: Launcher
    channel: ClaimChannel
    commands: CommandSender
    clock: Clock
    pool: str
    version: str
    #: Ask for a pool_manager run now. Best effort: the schedule is the safety net.
    wake_pool: Callable[[], None]
    spans: Spans = NO_SPANS
    #: Launches the repairs of a batch, where calls draw on a budget: people's starts come before them.
    repairs: Launcher | None = None
