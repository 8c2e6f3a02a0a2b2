"""What happened to the workers lately, for people who ask why and for those who watch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: Enough for hours of an ordinary fleet; a watcher further behind than this is told to look anew.
LENGTH = 1000


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened. Numbers rise by one."""

    number: int
    at: float  #: seconds since 1970
    key: str
    event: str  #: started, adopted, exited, asked to leave, killed, not started, given up
    detail: str


class Timeline:
    """The last entries. Whoever uses it holds the supervisor's guard."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque(maxlen=LENGTH)
        self.last = 0

    def add(self, at: float, key: str, event: str, detail: str) -> None:
        self.last += 1
        self._entries.append(Entry(self.last, at, key, event, detail))

    def since(self, number: int) -> list[Entry] | None:
        """Entries after `number`; None when some of them are already forgotten."""
        news = [entry for entry in self._entries if entry.number > number]
        return news if len(news) == self.last - number else None

    def of(self, key: str, limit: int) -> list[Entry]:
        """The last entries of one key, oldest first."""
        return [entry for entry in self._entries if entry.key == key][-limit:]
