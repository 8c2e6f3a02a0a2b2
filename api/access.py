"""Who may call a route. Every route names one of three guards; the method says whether it reads or changes.

    APIRouter(prefix="/v1/queues", dependencies=[Depends(of_the_fleet)])
    @routes.get("/{user_id}", dependencies=[Depends(of_one_user)])

A route that names none is refused when the application is built, so nothing is open by being forgotten. A
guard that lets a change through writes it into the audit before the route runs (`api.audit`).
"""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from api.audit import Audit, asked
from api.auth import Principal, Right

#: Methods that change nothing.
READS = frozenset({"GET", "HEAD", "OPTIONS"})


def principal_of(request: Request) -> Principal:
    """Who is asking; the guard of the door has put it there."""
    found: Principal = request.scope["state"]["principal"]
    return found


async def of_the_fleet(request: Request) -> None:
    """Everybody's: operators change it, viewers see it, a user does neither."""
    needed = Right.FLEET_READ if request.method in READS else Right.FLEET_CHANGE
    await _let_in(request, needed in principal_of(request).role.rights, needed)


async def of_one_user(request: Request) -> None:
    """That user's, whom the path names, and the fleet's. Whether another user exists is not told."""
    who = principal_of(request)
    reads = request.method in READS
    own, any_ = (Right.OWN_READ, Right.FLEET_READ) if reads else (Right.OWN_CHANGE, Right.FLEET_CHANGE)
    rights = who.role.rights
    its_own = own in rights and who.user_id is not None and who.user_id == request.path_params["user_id"]
    await _let_in(request, its_own or any_ in rights, any_)


async def of_anybody(request: Request) -> None:
    """Whoever holds a good token. Only for what changes nothing."""
    await _let_in(request, request.method in READS, Right.FLEET_CHANGE)


async def of_nobody() -> None:
    """Open, without a token: health, for load balancers."""


_GUARDS = frozenset({of_the_fleet, of_one_user, of_anybody, of_nobody})


async def _let_in(request: Request, allowed: bool, needed: Right) -> None:
    who = principal_of(request)
    if not allowed:
        own = f" and only of {who.user_id}" if who.user_id else ""
        raise HTTPException(403, f"your role is {who.role.value}{own}; this needs {needed.value}")
    if request.method not in READS:
        audit: Audit = request.app.state.audit
        request.state.audited = await audit.begin(await asked(request, who))


def check(routers: Iterable[APIRouter]) -> None:
    """Refuse a route that does not say who may call it: a mistake of ours, found before anybody is served."""
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and len(_GUARDS & _calls(route)) != 1:
                raise TypeError(f"{route.methods} {route.path} must name one guard of api.access")


def _calls(route: APIRoute) -> set[object]:
    return {dependency.call for dependency in route.dependant.dependencies}
