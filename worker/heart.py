"""The heartbeat: extends the mark from a thread of its own, so that blocked work cannot lose the lease."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from muster import steps
from muster.blueprint import MARK_BEAT
from muster.errors import TryLater
from muster.store import Step
from worker.exits import Exit
from worker.life import Me
from worker.session import Context

_BEAT_S = MARK_BEAT.total_seconds()
_RETRY_S = 1.0


class Heart:
    """Beats for one assignment. `beat` is one beat; `start` runs them in a thread until `stop`."""

    def __init__(
        self, me: Me, ctx: Context, *, wait: Callable[[float], Any], die: Callable[[int], None] = os._exit
    ):
        self._me = me
        self._ctx = ctx
        self._wait = wait
        self._die = die
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.ready = False
        #: The first beat also writes down whose task this is; one round trip carries both.
        self._tell_owner = True
        #: ... and the first one that says ready notes the start. Tried once: no mark hangs on a statistic.
        self._tell_start = True
        self.next_in = _BEAT_S

    def beat(self) -> None:
        """Renew once, and believe the answer. Raises nothing: a renewal that fails is tried again soon."""
        me, given = self._me, self._ctx.given
        with self._lock:
            if self._stopped.is_set():
                return  # the mark has been dropped; a beat would bring it back
            if me.lease.ended:
                # Too late, whatever the store would say: somebody else may have acted meanwhile.
                self._end(me.lease.ended)
                return
            sent_at = me.clock.monotonic()
            ready = self.ready  # once: the session's thread sets it
            beat = steps.beat_mark(
                given, me.worker_id, me.task_id, me.version, self._ctx.state_json(), ready=ready
            )
            first_words: list[Step[Any]] = [
                steps.index_add(given.user),
                steps.own_task(me.task_id, given.user),
            ]
            start = [steps.note_start(given)] if ready and self._tell_start else []
            self._tell_start = self._tell_start and not ready
            try:
                tag, *detail = me.store.run(beat, *(first_words if self._tell_owner else []), *start)[0]
                if tag == "restored" and not self._tell_owner:
                    self._tell_owner = True  # until it has been said: should this fail, the next beat does
                    me.store.run(*first_words)
            except (TryLater, RedisError) as failed:
                # Also an error the server answers with (out of memory, a replica): the lease decides, and
                # a heart that died of it would leave a worker that nobody ends.
                me.log(str(failed))
                self.next_in = _RETRY_S
            else:
                self._tell_owner = False
                self.next_in = _BEAT_S
                if tag in ("fenced", "lost"):
                    self._end(f"{tag} {' '.join(detail)}")
                else:
                    me.lease.renewed(sent_at)
            if me.lease.ended:
                self._end(me.lease.ended)

    def _end(self, why: str) -> None:
        self._me.lease.end(why)
        self._ctx.stopping.set()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="heart", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wait(self.next_in)
            if self._stopped.is_set():
                return
            self.beat()
            if self._me.lease.ended and self._me.lease.seconds_left <= 0:
                # The main thread did not get out in time; nothing may act past the lease.
                self._me.log(f"exit without goodbye: {self._me.lease.ended}")
                self._die(Exit.LEASE_LOST)
            elif self._me.lease.ended:
                self.next_in = max(0.05, min(_RETRY_S, self._me.lease.seconds_left))

    def stop(self) -> None:
        """No beat after this returns."""
        with self._lock:
            self._stopped.set()
