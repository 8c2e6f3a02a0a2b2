"""`/v1/workers`: commands in, state out."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Header, Path, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from api.access import of_one_user, of_the_fleet, principal_of
from api.crowd import CrowdRoute
from api.ids import UserId
from api.source import (
    Accepted,
    Explanation,
    FleetSource,
    LogPage,
    NotFound,
    Page,
    Sort,
    WorkerQuery,
    WorkerView,
)
from muster.commands import Action
from muster.model import Phase

log = logging.getLogger(__name__)

User = Annotated[UserId, Path()]
IdempotencyKey = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        pattern=r"^[\x21-\x7e]*$",
        description="A repeat with the same key for the same user within 24 hours is the same command.",
    ),
]


class CommandBody(BaseModel):
    """What may be said with a command. All of it is optional, the body too."""

    model_config = ConfigDict(extra="forbid")

    credentials_ref: Annotated[str, Field(max_length=512)] = ""
    reason: Annotated[str, Field(max_length=200)] = ""


def router(source: FleetSource) -> APIRouter:
    routes = APIRouter(prefix="/v1/workers", tags=["workers"])

    its = [Depends(of_one_user)]

    async def worker(user_id: User) -> WorkerView:
        view = await source.worker(user_id)
        if view is None:
            raise NotFound(f"nobody ever asked for {user_id}; start it first")
        return view

    # First, so that it is found first: most requests are for it.
    routes.add_api_route(
        "/{user_id}",
        worker,
        summary="One user's worker, as it is now",
        dependencies=its,
        route_class_override=CrowdRoute,
    )

    @routes.post(
        "/{user_id}/{action}",
        status_code=202,
        summary="Start, stop or restart a user's worker",
        dependencies=its,
    )
    async def command(
        request: Request,
        user_id: User,
        action: Action,
        body: Annotated[CommandBody | None, Body()] = None,
        idempotency_key: IdempotencyKey = "",
    ) -> Accepted:
        said = body or CommandBody()
        accepted = await source.command(
            user_id,
            action,
            idempotency_key=idempotency_key,
            credentials_ref=said.credentials_ref,
            reason=said.reason,
        )
        log.info(
            "%s of %s accepted as %s, asked by %s",
            action.value,
            user_id,
            accepted.command_id,
            principal_of(request).subject,
        )
        return accepted

    @routes.get("", summary="List workers", dependencies=[Depends(of_the_fleet)])
    def workers(
        phase: Phase | None = None,
        q: Annotated[str, Query(max_length=128, description="Part of a user id or of a reason.")] = "",
        sort: Sort = Sort.USER,
        cursor: Annotated[str, Query(max_length=1024, description="next_cursor of the page before.")] = "",
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> Page:
        return source.workers(WorkerQuery(phase, q, sort, cursor, limit))

    @routes.get("/{user_id}/explain", summary="Why it is so, and what comes next", dependencies=its)
    def explain(user_id: User) -> Explanation:
        return source.explain(user_id)

    @routes.get(
        "/{user_id}/logs",
        summary="The last lines of a worker's output, or what came since",
        dependencies=its,
    )
    def logs(
        user_id: User,
        lines: Annotated[int, Query(ge=1, le=10_000)] = 100,
        cursor: Annotated[str, Query(max_length=1024, description="cursor of the answer before.")] = "",
    ) -> LogPage:
        return source.logs(user_id, lines, cursor)

    return routes
