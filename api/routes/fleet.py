"""`/v1/pool`, `/v1/queues` and what they gave up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BaseModel, ConfigDict, Field

from api.access import of_the_fleet
from api.source import DeadLetter, FleetSource, NotFound, PoolView, QueueView

#: More idle workers than this is a slip of the finger, not a plan.
LARGEST_POOL = 10_000
_MOST_DEAD_LETTERS = 500

QueueName = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,80}(\.fifo)?$")]
MessageId = Annotated[str, Path(pattern=r"^[A-Za-z0-9-]{1,100}$")]


class PoolBody(BaseModel):
    """What an operator wants of the pool."""

    model_config = ConfigDict(extra="forbid", strict=True)

    target: Annotated[int, Field(ge=0, le=LARGEST_POOL)]


@dataclass(frozen=True, slots=True)
class Moved:
    """How many messages were sent round again."""

    redriven: int


@dataclass(frozen=True, slots=True)
class Purged:
    """About how many messages were thrown away."""

    purged: int


def router(source: FleetSource) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["fleet"], dependencies=[Depends(of_the_fleet)])

    @routes.get("/pool", summary="The warm pool")
    def pool() -> PoolView:
        return source.pool()

    @routes.put("/pool", summary="Set the warm pool's target")
    def set_pool(body: PoolBody) -> PoolView:
        return source.set_pool_target(body.target)

    @routes.get("/queues", summary="Every queue with its depth")
    def queues() -> Sequence[QueueView]:
        return source.queues()

    @routes.get("/queues/{queue}/dead-letters", summary="What a queue gave up, with the reasons")
    def dead_letters(
        queue: QueueName, limit: Annotated[int, Query(ge=1, le=_MOST_DEAD_LETTERS)] = 50
    ) -> Sequence[DeadLetter]:
        return source.dead_letters(queue, limit)

    @routes.get("/queues/{queue}/dead-letters/{message_id}", summary="One message that was given up")
    def dead_letter(queue: QueueName, message_id: MessageId) -> DeadLetter:
        for letter in source.dead_letters(queue, _MOST_DEAD_LETTERS):
            if letter.message_id == message_id:
                return letter
        raise NotFound(f"{message_id} is not among the given-up messages of {queue}")

    @routes.post("/queues/{queue}/dead-letters/redrive", summary="Send all of them round again")
    def redrive(queue: QueueName) -> Moved:
        return Moved(source.redrive(queue))

    @routes.post("/queues/{queue}/dead-letters/{message_id}/redrive", summary="Send one round again")
    def redrive_one(queue: QueueName, message_id: MessageId) -> Moved:
        return Moved(source.redrive(queue, message_id))

    @routes.delete("/queues/{queue}/dead-letters", summary="Throw all of them away")
    def purge(queue: QueueName) -> Purged:
        return Purged(source.purge(queue))

    return routes
