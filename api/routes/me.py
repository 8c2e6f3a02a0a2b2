"""`/v1/me` and `/v1/audit`: who one is, and what everybody changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request

from api.access import of_anybody, of_the_fleet, principal_of
from api.audit import Audit, AuditPage
from api.auth import Right, Role


@dataclass(frozen=True, slots=True)
class Me:
    """Whom the token names, and what that one may do."""

    subject: str
    role: Role
    user_id: str | None  #: whose worker is its own; null for those who see the whole fleet
    may: Sequence[Right]


def router(audit: Audit) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["access"])

    @routes.get("/me", summary="Who you are and what you may do", dependencies=[Depends(of_anybody)])
    async def me(request: Request) -> Me:
        who = principal_of(request)
        return Me(who.subject, who.role, who.user_id, sorted(who.role.rights))

    @routes.get("/audit", summary="Every change, newest first", dependencies=[Depends(of_the_fleet)])
    async def changes(
        cursor: Annotated[str, Query(max_length=64, description="next_cursor of the page before.")] = "",
        limit: Annotated[int, Query(ge=1, le=500)] = 50,
    ) -> AuditPage:
        return await audit.page(cursor, limit)

    return routes
