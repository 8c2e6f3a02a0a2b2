"""CycleWorker: write a strategy as one function; everything around it is done here.

    class Mine(CycleWorker):
        async def cycle(self, ctx: Context) -> dict:
            ctx.progress("fetching")
            ...
            return {"decision": "hold"}

A plain function `def cycle(ctx) -> dict` does as well. The worker takes the key's lock, opens the key's
database, beats, listens, and runs the cycle every `interval_sec`. What a strategy keeps in memory (on
`self`) never leaves the process; what it returns is published and stored.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from muster.clock import Clock
from muster.errors import LostLease, TryLater
from muster.store import Store
from supervisor.timings import KEEP_ROWS, Timings
from worker.cycle_db import Journal, open_database, prune, record_cycle
from worker.cycle_heart import Ear, Heart
from worker.cycle_keys import Keys
from worker.cycle_lock import Lock, name_holder

_LOG = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_HELD = 4  #: another process holds the key's lock, or took it from us


@dataclass(slots=True)
class State:
    """What the world sees of a worker: the JSON of `<prefix>:worker:<key>:state`."""

    key: str
    pid: int
    status: str = "starting"  #: starting, running, sleeping, error or stopping
    cycle: int = 0
    progress: str = ""
    error: str | None = None  #: of the last cycle; null when it went well
    started_at: float = 0.0
    cycle_at: float | None = None
    next_cycle_at: float | None = None
    result: dict[str, Any] = field(default_factory=dict)  #: what the strategy returned or published last


class Context:
    """What one worker gives its strategy. One object for the whole life of the worker."""

    def __init__(self, worker: CycleWorker) -> None:
        self._worker = worker
        self.key = worker.key
        self.settings = worker.settings
        self.interval_sec = worker.interval_sec
        self.log = logging.getLogger(f"strategy.{worker.key}")

    @property
    def db(self) -> sqlite3.Connection:
        """The key's own database."""
        return self._worker.database

    @property
    def cycle(self) -> int:
        """The number of this cycle, from 1."""
        return self._worker.state.cycle

    @property
    def stopping(self) -> bool:
        """Was the worker asked to leave? Long cycles look here and come to an end."""
        return self._worker.stopping.is_set()

    def now(self) -> float:
        return self._worker.clock.now()

    def require_lock(self) -> None:
        """Raise LostLease unless this process may act. Call it before every side effect."""
        if not self._worker.lock.held():
            raise LostLease(f"{self.key}: the lock was not renewed in time; nothing may be done any more")

    def progress(self, text: str) -> None:
        """Say in a few words where the cycle is; seen with the next heartbeat."""
        self._worker.state.progress = text

    def publish(self, **fields: Any) -> None:
        """Publish fields of the result now, before the cycle returns them."""
        self._worker.state.result = _snapshot({**self._worker.state.result, **fields})
        self._worker.heart.poke()

    async def rest(self) -> None:
        """Sleep until the next cycle is due, or the worker is asked to leave."""
        await self._worker.rest()


class CycleWorker:
    """One process for one key. Subclass it and write `cycle`; `run` does the rest."""

    def __init__(
        self,
        key: str,
        *,
        store: Store,
        ear_client: Any,
        clock: Clock,
        keys: Keys | None = None,
        timings: Timings | None = None,
        interval_sec: float = 900,
        settings: dict[str, Any] | None = None,
        data: Path = Path(".data"),
    ) -> None:
        self.key = key
        self.clock = clock
        self.interval_sec = interval_sec
        self.settings = settings or {}
        self.state = State(key, os.getpid(), started_at=clock.now())
        self.stopping = asyncio.Event()
        self.lock: Lock
        self.heart: Heart
        self.database: sqlite3.Connection
        self._store, self._ear_client = store, ear_client
        self._keys, self._timings = keys or Keys(), timings or Timings()
        self._path = data / f"{key}.db"
        self._due = clock.monotonic()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def cycle(self, ctx: Context) -> dict[str, Any]:
        """One round of the strategy. What it returns is published and stored; it must be JSON."""
        raise NotImplementedError("write 'async def cycle(self, ctx) -> dict' in your strategy")

    async def pause(self, ctx: Context) -> None:
        """What happens between two cycles; by default, sleep until the next is due."""
        await ctx.rest()

    async def run(self) -> int:
        """Live: returns the exit code when asked to leave, or when the lock belongs to another process."""
        self._loop = asyncio.get_running_loop()
        self.lock = Lock(self._store, self._keys.lock(self.key), self._timings.worker_lock_ttl, self.clock)
        holder = self.lock.take()
        if holder is not None:
            _LOG.error("%s: %s already works for this key; leaving", self.key, name_holder(holder))
            return EXIT_HELD
        journal = Journal(self._path, self.lock.value, self.clock.now())
        self.database = open_database(self._path)
        pruned = prune(self.database, self.clock.now(), KEEP_ROWS)
        _LOG.info(
            "%s: lock taken, %d old rows pruned, a cycle every %g s", self.key, pruned, self.interval_sec
        )
        self.heart = Heart(
            self._store,
            self._keys,
            self.key,
            self.lock,
            journal,
            self._published,
            self._lost,
            self._timings,
            self.clock,
        )
        ear = Ear(
            self._ear_client,
            self._store,
            self._keys,
            self.key,
            self.ask_to_leave,
            self.heart.poke,
            self._timings,
        )
        self.heart.start()
        ear.start()
        try:
            ctx = Context(self)
            while not self.stopping.is_set():
                await self._one_cycle(ctx)
                await self.pause(ctx)
        finally:
            ear.end()
            self.heart.end()
            self.database.close()
            journal.end(self.clock.now(), "released")
            self._release()
        _LOG.info("%s: lock released, leaving", self.key)
        return EXIT_OK

    def _release(self) -> None:
        try:
            self.lock.release()
        except TryLater as away:
            _LOG.warning("%s: lock not released (%s); a successor here sees that we are gone", self.key, away)

    def ask_to_leave(self, why: str) -> None:
        """Finish the cycle, then leave. Safe from any thread and from a signal handler."""

        def leave() -> None:
            if not self.stopping.is_set():
                _LOG.info("%s: asked to leave by %s", self.key, why)
                self.state.status = "stopping"
                self.stopping.set()

        if self._loop is None:
            self.stopping.set()
        else:
            self._loop.call_soon_threadsafe(leave)

    async def rest(self) -> None:
        """Sleep until the next cycle is due; no sleep at all when that is already past."""
        pause = self._due - self.clock.monotonic()
        if pause <= 0 or self.stopping.is_set():
            return
        self.state.next_cycle_at = self.clock.now() + pause
        if self.state.status == "running":
            self.state.status = "sleeping"
        try:
            await asyncio.wait_for(self.stopping.wait(), pause)
        except TimeoutError:
            return

    async def _one_cycle(self, ctx: Context) -> None:
        at, began = self.clock.now(), self.clock.monotonic()
        self._due = began + self.interval_sec
        state = self.state
        state.status, state.cycle, state.cycle_at, state.progress = "running", state.cycle + 1, at, ""
        result: dict[str, Any] | None = None
        error: str | None = None
        try:
            result = _snapshot(await self.cycle(ctx))
        except Exception as failed:  # noqa: BLE001 - a strategy may raise anything: it is shown, stored, survived
            _LOG.exception("%s: cycle %d failed", self.key, state.cycle)
            result, error = None, f"{type(failed).__name__}: {failed}"
        record_cycle(self.database, at, self.clock.monotonic() - began, error, result)
        state.error = error
        if error is not None:
            state.status = "error"
        elif result is not None:
            state.result = result
        if self.stopping.is_set():
            state.status = "stopping"
        self.heart.poke()

    def _published(self) -> str:
        return json.dumps(asdict(self.state))

    def _lost(self, reason: str) -> None:
        # Not even a last line of the strategy may run: another process acts for the key from now on, and
        # a thread blocked in a call cannot be asked to leave.
        _LOG.error("%s: lock lost: %s", self.key, reason)
        logging.shutdown()
        os._exit(EXIT_HELD)


def _snapshot(result: dict[str, Any]) -> dict[str, Any]:
    # A copy: the heart reads it in its own thread while the strategy may go on changing what it returned.
    return dict(json.loads(json.dumps(result)))


class _FunctionWorker(CycleWorker):
    """Runs a plain function as a strategy; one that is not async gets a thread, so that beats go on."""

    function: Callable[[Context], Any]

    async def cycle(self, ctx: Context) -> dict[str, Any]:
        if inspect.iscoroutinefunction(self.function):
            return dict(await self.function(ctx))
        return dict(await asyncio.to_thread(self.function, ctx))


def worker_class(strategy: Any) -> type[CycleWorker]:
    """The worker for a strategy: a CycleWorker subclass as it is, a function wrapped into one."""
    if isinstance(strategy, type) and issubclass(strategy, CycleWorker):
        return strategy
    if callable(strategy):
        return type("FunctionWorker", (_FunctionWorker,), {"function": staticmethod(strategy)})
    raise TypeError(
        f"{strategy!r} is neither a CycleWorker nor a function; see docs/how-to/write-a-strategy.md"
    )
