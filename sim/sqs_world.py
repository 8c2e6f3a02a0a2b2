"""SQS as documented: at least once, order within a group, visibility, receive counts, dead-letter queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import md5
from random import Random
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError, EndpointConnectionError

from muster.blueprint import QUEUES, Queue

if TYPE_CHECKING:
    from sim.world import World

DEDUPLICATION_S = 300.0


@dataclass(slots=True)
class Message:
    """One message; `receives` also names the receipt that is valid now."""

    message_id: str
    body: str
    group: str
    sent_at: float
    visible_at: float
    attributes: dict[str, Any] = field(default_factory=dict)
    receives: int = 0

    @property
    def handle(self) -> str:
        return f"{self.message_id}#{self.receives}"

    def received(self) -> dict[str, Any]:
        """The shape of ReceiveMessage."""
        return {
            "MessageId": self.message_id,
            "ReceiptHandle": self.handle,
            "Body": self.body,
            "MD5OfBody": md5(self.body.encode(), usedforsecurity=False).hexdigest(),
            "Attributes": {
                "MessageGroupId": self.group,
                "SentTimestamp": str(round(self.sent_at * 1000)),
                "ApproximateReceiveCount": str(self.receives),
            },
            "MessageAttributes": self.attributes,
        }


class SimQueue:
    """One queue, in the order of arrival."""

    def __init__(self, sqs: SqsWorld, spec: Queue) -> None:
        self.spec = spec
        self.messages: list[Message] = []
        self._sqs = sqs
        self._seen: dict[str, float] = {}
        #: Called when something can be received, now or later.
        self.on_visible: Callable[[float], None] = lambda _: None
        self.duplicates = 0  #: the next so many receives leave the message visible (standard) or come twice

    def put(
        self, body: str, group: str, dedup: str, attributes: dict[str, Any] | None = None
    ) -> Message | None:
        """None: swallowed as a repeat of the last five minutes, and yet acknowledged."""
        now = self._sqs.world.loop.now
        if self.spec.fifo:
            if self._seen.get(dedup, 0.0) > now:
                return None
            self._seen[dedup] = now + DEDUPLICATION_S
        number = next(self._sqs.numbers)
        message = Message(f"m-{number:05d}", body, group, now, now, dict(attributes or {}))
        self.messages.append(message)
        self.on_visible(0.0)
        return message

    def receive(self, most: int) -> list[Message]:
        now, rng = self._sqs.world.loop.now, self._sqs.world.rng
        retention = self.spec.retention.total_seconds()
        self.messages = [m for m in self.messages if m.sent_at + retention > now]
        batch: list[Message] = []
        blocked: set[str] = set()
        candidates = list(self.messages)
        if self.spec.fifo:
            candidates = self._sqs.groups_in_any_order(candidates)
        else:
            rng.shuffle(candidates)
        for message in candidates:
            if len(batch) == most:
                break
            if message.visible_at > now or (self.spec.fifo and message.group in blocked):
                blocked.add(message.group)
                continue
            if self.spec.max_receives and message.receives >= self.spec.max_receives:
                self._sqs.to_dead_letters(self, message)
                continue
            message.receives += 1
            again = not self.spec.fifo and self.duplicates > 0
            if again:
                self.duplicates -= 1
                self._sqs.world.count("claim twice")
            message.visible_at = now if again else now + self.spec.visibility.total_seconds()
            batch.append(message)
        self.look_again()
        return batch

    def delete(self, handle: str) -> bool:
        message = self._current(handle)
        if message is None:
            return False
        self.messages.remove(message)
        self.on_visible(0.0)
        return True

    def change_visibility(self, handle: str, seconds: float) -> None:
        if (message := self._current(handle)) is not None:
            message.visible_at = self._sqs.world.loop.now + seconds
            self.on_visible(seconds)

    def look_again(self) -> None:
        """Say when the next message can be received."""
        if self.messages:
            soonest = min(m.visible_at for m in self.messages)
            self.on_visible(max(0.0, soonest - self._sqs.world.loop.now))

    def _current(self, handle: str) -> Message | None:
        """The message of this receipt, if it is still good: a FIFO receipt dies with its visibility."""
        now = self._sqs.world.loop.now
        for message in self.messages:
            if message.handle == handle and (message.visible_at > now or not self.spec.fifo):
                return message
        return None


class SqsWorld:
    """All queues, and the boto3 client that the handlers and workers use; a queue's URL is its name."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.numbers = iter(range(1, 1_000_000))
        self.queues = {spec.name: SimQueue(self, spec) for spec in QUEUES}
        self.away_until = 0.0
        self.on_dead_letter: Callable[[SimQueue, Message], None] = lambda *_: None
        self._dice = Random(f"groups-{world.plan.seed}")

    def groups_in_any_order(self, messages: list[Message]) -> list[Message]:
        """Order is promised within a group only: one group after another, and nobody knows which first."""
        groups: dict[str, list[Message]] = {}
        for message in messages:
            groups.setdefault(message.group, []).append(message)
        order = list(groups.values())
        self._dice.shuffle(order)
        return [message for group in order for message in group]

    def to_dead_letters(self, queue: SimQueue, message: Message) -> None:
        queue.messages.remove(message)
        self.queues[str(queue.spec.dead_letter)].messages.append(message)
        self.on_dead_letter(queue, message)
        self.world.trace("sqs", "dead-lettered", message.message_id)

    def redrive(self, source: str, target: str) -> int:
        """Move all dead letters back, as a person does."""
        letters, self.queues[source].messages = self.queues[source].messages, []
        for letter in letters:
            letter.receives, letter.visible_at = 0, self.world.loop.now
            self.queues[target].messages.append(letter)
        self.queues[target].look_again()
        return len(letters)

    def _effect(self, name: str, do: Callable[[], Any]) -> Any:
        def reach() -> None:
            if self.away_until > self.world.loop.now:
                raise EndpointConnectionError(endpoint_url="sqs")

        def lost() -> Any:
            return ClientError(
                {"Error": {"Code": "InternalError", "Message": "no answer"}, "ResponseMetadata": {}}, name
            )

        return self.world.effect("sqs", name, do, reach=reach, lost=lost)

    def send_message(self, **request: Any) -> Any:
        queue = self.queues[request["QueueUrl"]]
        return self._effect(
            "send",
            lambda: self._put(queue, [request]),
        )

    def send_message_batch(self, **request: Any) -> Any:
        queue = self.queues[request["QueueUrl"]]
        return self._effect("send", lambda: self._put(queue, request["Entries"]))

    def _put(self, queue: SimQueue, entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
        for entry in entries:
            message = queue.put(
                entry["MessageBody"],
                entry.get("MessageGroupId", ""),
                entry.get("MessageDeduplicationId", ""),
                entry.get("MessageAttributes"),
            )
            if message is not None:
                self.world.people.sent(queue, message)
        return {}

    def receive_message(self, **request: Any) -> Any:
        queue = self.queues[request["QueueUrl"]]
        most = request["MaxNumberOfMessages"]
        return self._effect("receive", lambda: {"Messages": [m.received() for m in queue.receive(most)]})

    def delete_message(self, **request: Any) -> Any:
        queue = self.queues[request["QueueUrl"]]

        def delete() -> dict[str, Any]:
            handle = request["ReceiptHandle"]
            bodies = [message.body for message in queue.messages if message.handle == handle]
            if queue.delete(handle):
                self.world.audit("deleted", bodies[0])
            return {}

        return self._effect("delete", delete)

    def change_message_visibility(self, **request: Any) -> Any:
        queue = self.queues[request["QueueUrl"]]
        seconds = float(request["VisibilityTimeout"])
        return self._effect("visibility", lambda: queue.change_visibility(request["ReceiptHandle"], seconds))

    def change_message_visibility_batch(self, **request: Any) -> Any:
        queue = self.queues[request["QueueUrl"]]

        def change() -> dict[str, Any]:
            for entry in request["Entries"]:
                queue.change_visibility(entry["ReceiptHandle"], float(entry["VisibilityTimeout"]))
            return {}

        return self._effect("visibility", change)
