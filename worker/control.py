"""The control channel: SHUTDOWN and RESTART, for all or for one user. A hint; the fence is what counts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from muster import keys
from muster.blueprint import RESTARTING_TTL
from muster.model import Assignment

#: A session that takes longer to open is listened for all the same.
_LISTEN_WITHIN_S = 0.25


class Control:
    """Waits for the next beat and listens meanwhile, in the heartbeat's thread: one thread for both.

    `listen` begins it. The heart itself begins only a moment after the start: on a start's way it would take
    the interpreter from the session, which takes a few milliseconds.
    """

    def __init__(
        self, client: Any, given: Assignment, stop: Callable[[str], None], log: Callable[[str], None]
    ):
        self._client = client
        self._given = given
        self._stop = stop
        self._log = log
        self._pubsub: Any = None
        self._listening = threading.Lock()  # held while the subscription is made
        self._begun = threading.Event()

    def listen(self) -> None:
        """Hear what is said from now on. Does nothing where it listens already; raises nothing."""
        try:
            self._subscribe()
        except Exception as away:  # noqa: BLE001 - the heart tries again
            self._log(f"control channel away: {away}")
        self._begun.set()

    def _subscribe(self) -> Any:
        with self._listening:
            if self._pubsub is None:
                pubsub = self._client.pubsub(ignore_subscribe_messages=True)
                pubsub.subscribe(keys.CONTROL)
                self._pubsub = pubsub
            return self._pubsub

    def wait(self, seconds: float) -> None:
        """Return after `seconds`, handling what comes in. A lost connection costs only the listening."""
        until = time.monotonic() + seconds
        self._begun.wait(min(seconds, _LISTEN_WITHIN_S))
        while (left := until - time.monotonic()) > 0:
            try:
                message = self._subscribe().get_message(timeout=left)
                if message is not None:
                    self._handle(message["data"])
            except Exception as away:  # noqa: BLE001 - any client error means the same: listen again later
                self._log(f"control channel away: {away}")
                self._pubsub = None
                time.sleep(min(left, 1.0))

    def _handle(self, body: str | bytes) -> None:
        try:
            order = json.loads(body)
            action, user = order["action"], order.get("user_id")
            below = int(order.get("below_epoch", self._given.epoch + 1))
        except (ValueError, KeyError, TypeError, AttributeError):
            self._log(f"control message not understood: {body!r:.100}")
            return
        if user not in (None, self._given.user) or self._given.epoch >= below:
            return
        try:
            if action == "RESTART":
                ttl = round(RESTARTING_TTL.total_seconds())
                self._client.set(keys.restarting(self._given.user), self._given.epoch, ex=ttl)
        finally:
            if action in ("SHUTDOWN", "RESTART"):
                self._stop(action)
