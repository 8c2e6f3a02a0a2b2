"""`/v1/workers/{user}/timeline` and `/v1/starts`: what happened to one user, how long starts took for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query

from api.access import of_one_user, of_the_fleet
from api.ids import UserId
from api.source import FleetSource, StartRecord, Timeline
from muster.blueprint import STARTS_KEPT


def router(source: FleetSource) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["workers"])

    @routes.get(
        "/workers/{user_id}/timeline",
        summary="Everything about one user's worker",
        dependencies=[Depends(of_one_user)],
    )
    def timeline(user_id: Annotated[UserId, Path()]) -> Timeline:
        return source.timeline(user_id)

    @routes.get(
        "/starts",
        summary="The last starts of all users, and how long they took",
        dependencies=[Depends(of_the_fleet)],
    )
    def starts(limit: Annotated[int, Query(ge=1, le=STARTS_KEPT)] = 500) -> Sequence[StartRecord]:
        return source.starts(limit)

    return routes
