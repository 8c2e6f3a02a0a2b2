"""The claim: the message that turns a pool worker into a user's worker, and the two ways it travels.

Both channels keep one contract: a claim may come late, twice or never. What makes that safe is not the
channel but `take_mark`; what makes it live is the sweep. Standard library only: pool workers import this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from muster import keys
from muster.errors import BadCommand, TryLater, aws_errors
from muster.model import Assignment, Cause, Via


@dataclass(frozen=True, slots=True)
class Claim:
    """Whom to serve, under which epoch, and which code version may. No credentials, only where they are."""

    user_id: str
    epoch: int
    version: str
    issued_at: int
    command_id: str
    credentials_ref: str
    cause: str

    @property
    def claim_id(self) -> str:
        return f"{self.user_id}/{self.epoch}"

    def to_json(self) -> str:
        body = {"action": "claim", "v": 1} | {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, body: str) -> Claim:
        """The claim in a message body; `BadCommand` says why there is none."""
        try:
            raw = json.loads(body)
            if raw["action"] != "claim" or raw["v"] != 1:
                raise BadCommand(f"not a claim of version 1: {body[:100]}")
            claim = cls(**{name: raw[name] for name in cls.__slots__})
            claim.assignment()
        except (ValueError, KeyError, TypeError) as broken:
            raise BadCommand(f"not a claim: {broken!r}") from broken
        return claim

    def assignment(self) -> Assignment:
        return Assignment(
            user=self.user_id,
            epoch=int(self.epoch),
            via=Via.WARM,
            cause=Cause(self.cause),
            issued_at_ms=int(self.issued_at),
            command_id=self.command_id,
            credentials_ref=self.credentials_ref,
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """A received claim: `done` when it is settled either way, `give_back` to let another worker have it."""

    body: str
    done: Callable[[], None]
    give_back: Callable[[], None]


class ClaimChannel(Protocol):
    """Carries claims from worker_control to any idle pool worker."""

    #: True where `reserve_slot` itself sends the claim, so that `send` is not needed.
    sends_with_reservation: bool

    def send(self, claims: Sequence[Claim]) -> list[Claim]:
        """Send them all in as few calls as possible; returns the ones that were NOT sent."""
        ...

    def receive(self, timeout: float) -> Delivery | None:
        """The next claim, or None after `timeout` seconds. Raises `TryLater` when the channel is away."""
        ...

    def wake(self) -> None:
        """End this receiver's wait now, if the channel can; called from a signal handler."""
        ...


class ValkeyChannel:
    """A Valkey list: one hop, no service in between. A claim popped by a worker that dies at once is lost;
    its start lease runs out and the sweep starts the user again."""

    sends_with_reservation = True

    def __init__(self, client: Any, pool: str, receiver: str = "") -> None:
        self._client = client
        self._list = keys.pool_claims(pool)
        self._wake = keys.pool_wake(pool, receiver)

    def send(self, claims: Sequence[Claim]) -> list[Claim]:  # noqa: ARG002 - reserve_slot has sent them
        return []

    def receive(self, timeout: float) -> Delivery | None:
        from redis.exceptions import RedisError

        try:
            popped = self._client.blpop([self._wake, self._list], timeout=timeout)
        except RedisError as away:
            raise TryLater(f"Valkey is away ({away})") from away
        if popped is None or popped[0] == self._wake:
            return None
        body = popped[1].decode() if isinstance(popped[1], bytes) else popped[1]
        return Delivery(body, lambda: None, lambda: self._client.lpush(self._list, body))

    def wake(self) -> None:
        self._client.rpush(self._wake, "")
        self._client.expire(self._wake, 60)


class SqsChannel:
    """The pool-claim queue: at least once, no order. A worker that dies in between lets it come again."""

    sends_with_reservation = False

    def __init__(self, sqs: Any, queue_url: str) -> None:
        self._sqs = sqs
        self._url = queue_url

    def send(self, claims: Sequence[Claim]) -> list[Claim]:
        unsent: list[Claim] = []
        for start in range(0, len(claims), 10):
            batch = claims[start : start + 10]
            entries = [{"Id": str(i), "MessageBody": claim.to_json()} for i, claim in enumerate(batch)]
            try:
                answer = self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)
            except aws_errors():
                unsent.extend(batch)
                continue
            unsent.extend(batch[int(failed["Id"])] for failed in answer.get("Failed", ()))
        return unsent

    def receive(self, timeout: float) -> Delivery | None:
        try:
            answer = self._sqs.receive_message(
                QueueUrl=self._url, MaxNumberOfMessages=1, WaitTimeSeconds=min(20, round(timeout))
            )
        except aws_errors() as away:
            raise TryLater(f"SQS is away ({away})") from away
        if not (messages := answer.get("Messages")):
            return None
        handle = {"QueueUrl": self._url, "ReceiptHandle": messages[0]["ReceiptHandle"]}
        return Delivery(
            messages[0]["Body"],
            lambda: self._sqs.delete_message(**handle),
            lambda: self._sqs.change_message_visibility(**handle, VisibilityTimeout=0),
        )

    def wake(self) -> None:
        """A long poll cannot be ended from outside; it returns within one beat."""
