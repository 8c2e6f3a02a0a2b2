"""Every user's worker, read once for all viewers.

Reading a whole fleet costs about a tenth of a millisecond per user: too much for every request. A roster is
read again when it is old; between two whole readings only the users that something happened to are read anew,
which keeps a large fleet live. What passes without an event (a mark that runs out, a forgotten user) shows
with the next whole reading.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from api import paging
from api.source import Page, WorkerQuery, WorkerView
from api.views import worker_view
from muster import keys, steps
from muster.blueprint import INDEX_BUCKETS
from muster.clock import Clock
from muster.errors import TryLater
from muster.model import Phase
from muster.store import Step, Store, command, text

_READ_CHUNK = 500
#: A whole reading is this old at most, or four times what it took: a large fleet must not be read all day.
_AGE_S = 1.0
_COST_SHARE = 4
#: An old roster is shown while a new one is read, unless nobody looked for this long: it is too old to show.
_TOO_OLD_S = 15.0
#: From this many users on, the first page does not wait for a whole reading.
_LARGE = 2000
#: Sorted lists kept of one state of the roster: one per filter and order that somebody looks at.
_ORDERS_KEPT = 32


class _Seen:
    """One state of the fleet. Sorted lists are made when they are first asked for."""

    def __init__(self, workers: Mapping[str, WorkerView]) -> None:
        self.workers = workers
        found = Counter(worker.phase for worker in workers.values())
        self.counts: Mapping[Phase, int] = {phase: found[phase] for phase in Phase}
        self._orders: dict[Any, Sequence[paging.Row]] = {}

    def ordered(self, query: WorkerQuery) -> Sequence[paging.Row]:
        wanted = (query.phase, query.q, query.sort)
        if wanted not in self._orders:
            if len(self._orders) >= _ORDERS_KEPT:
                self._orders.clear()
            self._orders[wanted] = paging.order(self.workers.values(), query)
        return self._orders[wanted]


class Roster:
    """Safe to use from many threads. `touch` tells it that something happened to a user."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._reading = threading.Lock()  # held by the one thread that reads all
        self._updating = threading.Lock()  # held by the one that reads what was touched
        self._seen: _Seen | None = None
        self._read_at = self._stale_at = self._update_at = float("-inf")
        self._touched: set[str] = set()
        self._updated: set[str] = set()  #: since the last whole reading began

    def page(self, query: WorkerQuery) -> Page:
        if self._clock.monotonic() - self._read_at >= _TOO_OLD_S and (early := self._early_page(query)):
            return early
        seen = self._current()
        ordered = seen.ordered(query)
        rows, next_cursor = paging.cut(ordered, query)
        return Page(rows, next_cursor, len(ordered), seen.counts)

    def _early_page(self, query: WorkerQuery) -> Page | None:
        """The page everybody opens first, of a large fleet that nobody has looked at lately: its rows need no
        reading of all the others. The counts follow; None where the whole must be read."""
        if query != WorkerQuery(limit=query.limit):
            return None
        users = self._users()
        if len(users) < _LARGE:
            return None
        self._read_behind()
        ordered = paging.order(self._read_chunk(users[: query.limit + 1]), query)
        rows, next_cursor = paging.cut(ordered, query)
        return Page(rows, next_cursor, len(users), {})

    def matching(self, query: WorkerQuery) -> Sequence[str]:
        """The ids of all users that match, sorted."""
        return sorted(worker.user_id for _, worker in self._current().ordered(query))

    def counts(self) -> Mapping[Phase, int]:
        return self._current().counts

    def touch(self, user_id: str) -> None:
        """From the thread that hears the events. Adding to a set is atomic."""
        self._touched.add(user_id)

    def _current(self) -> _Seen:
        now = self._clock.monotonic()
        quick = self._stale_at - self._read_at <= _AGE_S  # worth no thread: whoever asks gets the newest
        if now - self._read_at >= _TOO_OLD_S or (now >= self._stale_at and quick):
            with self._reading:
                if self._clock.monotonic() >= self._stale_at:  # nobody was faster
                    self._read_all()
        elif now >= self._stale_at:
            self._read_behind()
        if self._touched and now >= self._update_at:
            with self._updating:
                self._read_touched()
        assert self._seen is not None
        return self._seen

    def _read_behind(self) -> None:
        """Read all in a thread of its own, unless one does already; while nobody asks, nobody reads."""
        if not self._reading.acquire(blocking=False):
            return

        def read() -> None:
            try:
                self._read_all()
            except TryLater:
                pass  # the state grows too old soon, and then its viewers are told
            finally:
                self._reading.release()

        threading.Thread(target=read, name="roster", daemon=True).start()

    def _read_all(self) -> None:
        began = self._clock.monotonic()
        self._updated.clear()
        users = self._users()
        chunks = [users[start : start + _READ_CHUNK] for start in range(0, len(users), _READ_CHUNK)]
        with ThreadPoolExecutor(2) as pool:  # one chunk is worked on while the server answers the other
            found = [worker for chunk in pool.map(self._read_chunk, chunks) for worker in chunk]
        with self._updating:
            self._seen = _Seen({worker.user_id: worker for worker in found})
            self._touched |= self._updated  # this reading may have been too early for them
        ended = self._clock.monotonic()
        self._stale_at = ended + max(_AGE_S, _COST_SHARE * (ended - began))
        self._read_at = ended

    def _users(self) -> list[str]:
        members = (command("SMEMBERS", keys.index(bucket), parse=list) for bucket in range(INDEX_BUCKETS))
        return sorted({text(user) for bucket in self._store.run(*members) for user in bucket})

    def _read_chunk(self, users: Sequence[str]) -> list[WorkerView]:
        return [worker_view(view) for view in self._store.run(*(steps.read_user(user) for user in users))]

    def _read_touched(self) -> None:
        began = self._clock.monotonic()
        touched, self._touched = self._touched, set()
        users = sorted(touched)
        indexed: list[Step[int]] = [
            command("SISMEMBER", keys.index(keys.bucket_of(user)), user, parse=int) for user in users
        ]
        try:
            answers = self._store.run(*indexed, *(steps.read_user(user) for user in users))
        except TryLater:
            self._touched |= touched
            raise
        assert self._seen is not None
        workers = dict(self._seen.workers)
        for user, listed, view in zip(users, answers, answers[len(users) :], strict=False):
            if listed:
                workers[user] = worker_view(view)
            else:
                workers.pop(user, None)
        self._seen = _Seen(workers)
        self._updated |= touched
        self._update_at = self._clock.monotonic() + _COST_SHARE * (self._clock.monotonic() - began)
