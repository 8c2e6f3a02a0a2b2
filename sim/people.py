"""People and their commands: what they send, and the ledger of what became of it."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from muster.blueprint import ORDER_TASKS_DLQ, WORKER_CONTROL, WORKER_CONTROL_DLQ
from muster.commands import Action, Command
from sim.plan import Wish
from sim.sqs_world import Message, SimQueue

if TYPE_CHECKING:
    from sim.world import World


@dataclass(slots=True)
class Sent:
    """One command that the queue accepted."""

    command: dict[str, Any]
    state: str = "queued"  #: queued, done, dead

    @property
    def issued_at(self) -> float:
        return datetime.fromisoformat(self.command["issued_at"]).timestamp()


class People:
    """Everybody who sends commands, and the books of the auditor who counts them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.commands: dict[str, Sent] = {}
        self._command_of: dict[str, str] = {}
        self._numbers = itertools.count(1)
        world.sqs.on_dead_letter = self._dead

    def grant(self, wish: Wish) -> None:
        if wish.action in ("order", "cancel"):
            if self._world.trading is not None:
                self._world.trading.grant(wish)
            return
        if wish.action == "redrive":
            moved = self._world.sqs.redrive(WORKER_CONTROL_DLQ.name, WORKER_CONTROL.name)
            self._world.trace("person", "redrive", str(moved))
            return
        queue = self._world.sqs.queues[WORKER_CONTROL.name]
        if wish.action == "garbage":
            queue.put('{"action":"fly","user_id":"u0"}', wish.user, f"garbage-{self._world.loop.now}")
            return
        command = Command(
            action=Action(wish.action),
            user_id=wish.user,
            command_id=f"c-{next(self._numbers):03d}-{wish.action}",
            issued_at=datetime.fromtimestamp(round(self._world.loop.now, 3), UTC),
            credentials_ref=f"secret-{wish.user}" if self._world.trading and wish.action != "stop" else "",
        )
        self._world.trace("person", wish.action, wish.user, command.command_id)

        def send() -> None:
            message = queue.put(command.body(), command.user_id, command.dedup_id)
            if message is None:
                self._world.audit("swallowed", command.command_id)
            else:
                self.sent(queue, message)

        self._world.loop.after(wish.late, send)

    def sent(self, queue: SimQueue, message: Message) -> None:
        """A queue has accepted a message."""
        self._world.trace("sqs", "accepted", queue.spec.name, message.message_id)
        if queue.spec.name == ORDER_TASKS_DLQ.name and self._world.trading is not None:
            self._world.trading.dead_letter(queue, message)
        if queue.spec.name not in (WORKER_CONTROL.name, WORKER_CONTROL_DLQ.name):
            return
        body = json.loads(message.body)
        command_id = body.get("command_id", message.message_id)
        if queue.spec.name == WORKER_CONTROL_DLQ.name:
            if command_id in self.commands:
                self.commands[command_id].state = "dead"
            return
        key = f"{command_id}/{body['user_id']}/{body.get('seen_epoch', '')}/{message.message_id}"
        self.commands[key] = Sent(body)
        self._command_of[message.message_id] = key

    def handled(self, message_id: str) -> None:
        """The event source has deleted a message after success."""
        sent = self.commands.get(self._command_of.get(message_id, ""))
        if sent is not None and sent.state != "dead":
            sent.state = "done"

    def _dead(self, queue: SimQueue, message: Message) -> None:
        if self._world.trading is not None:
            self._world.trading.dead_letter(queue, message)
        if sent := self.commands.get(self._command_of.get(message.message_id, "")):
            sent.state = "dead"
