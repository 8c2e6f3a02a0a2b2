"""The control channel: SHUTDOWN and RESTART, for all or for one user. A hint; the fence is what counts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from muster import keys
from muster.blueprint import RESTARTING_TTL
from muster.model import Assignment


class Control:
    """Waits for the next beat and listens meanwhile, in the heartbeat's thread: one thread for both."""

    def __init__(
        self, client: Any, given: Assignment, stop: Callable[[str], None], log: Callable[[str], None]
    ):
        self._client = client
        self._given = given
        self._stop = stop
        self._log = log
        self._pubsub: Any = None

    def wait(self, seconds: float) -> None:
        """Return after `seconds`, handling what comes in. A lost connection costs only the listening."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                if self._pubsub is None:
                    self._pubsub = self._client.pubsub(ignore_subscribe_messages=True)
                    self._pubsub.subscribe(keys.CONTROL)
                message = self._pubsub.get_message(timeout=left)
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
