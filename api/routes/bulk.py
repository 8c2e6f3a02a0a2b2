"""`/v1/bulk`: look at everybody who matches, then command them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, ConfigDict, Field

from api import bulk
from api.access import of_the_fleet
from api.routes.workers import IdempotencyKey
from api.source import BulkAccepted, BulkOrder, FleetSource
from muster.commands import Action
from muster.model import Phase

#: Users named in a preview.
_SHOWN = 10

Words = Annotated[str, Query(max_length=128, description="Part of a user id or of a reason.")]


class BulkBody(BaseModel):
    """What was confirmed, and why. `selection` is the preview's and holds while the same users match."""

    model_config = ConfigDict(extra="forbid")

    selection: Annotated[str, Field(max_length=64)]
    reason: Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class Preview:
    """Who would get the command."""

    users: int
    selection: str
    some: Sequence[str]


def router(source: FleetSource) -> APIRouter:
    routes = APIRouter(prefix="/v1/bulk", tags=["workers"], dependencies=[Depends(of_the_fleet)])

    @routes.get("", summary="Who matches, before anything is done")
    def preview(phase: Phase | None = None, q: Words = "") -> Preview:
        users = source.matching(phase, q)
        return Preview(len(users), bulk.selection_of(users), users[:_SHOWN])

    @routes.post("/{action}", status_code=202, summary="Start, stop or restart everybody who matches")
    def command(
        action: Action,
        body: BulkBody,
        phase: Phase | None = None,
        q: Words = "",
        idempotency_key: IdempotencyKey = "",
    ) -> BulkAccepted:
        return source.bulk(BulkOrder(action, phase, q, body.selection, body.reason), idempotency_key)

    return routes
