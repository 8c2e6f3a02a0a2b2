"""The API, put together: one fleet behind one door.

Routes are plain functions that FastAPI runs in its thread pool. The core is synchronous, and so is every
fleet; a second, asynchronous set of clients would double the code for a read that takes one round trip. A
store that hangs then holds a thread for its timeout, never the event loop, so health keeps answering. What
comes in crowds, status reads and commands of one user, shares round trips (`api.together`, `api.convoy`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi

from api import access, cors, problems
from api.audit import Audit
from api.auth import Authenticator
from api.guard import OPEN_PATHS, Guard
from api.limits import Limits
from api.routes import bulk, events, fleet, health, me, page, timeline, workers
from api.source import FleetSource
from api.together import Together
from muster import __version__

TITLE = "Muster"


def create_app(
    source: FleetSource, store: Together, auth: Authenticator, *more: APIRouter, origins: Sequence[str] = ()
) -> FastAPI:
    """`store` keeps the audit and the limits; a source that reads from it shares its round trips. `more` are
    the parts that not every deployment has: orders, jobs. Pages of `origins` may call it from a browser."""
    app = FastAPI(title=TITLE, version=__version__, docs_url=None, redoc_url=None)
    problems.install(app)
    app.state.audit = audit = Audit(store)
    # Every router of the API is mounted here, in the order of its documentation.
    routers = [part.router(source) for part in (workers, timeline, bulk, fleet, events, health)]
    routers += [me.router(audit), page.router(), *more]
    access.check(routers)
    for router in routers:
        # Not `include_router`, which looks for the route twice per request: each carries its whole path
        # already.
        app.router.routes.extend(router.routes)
    app.add_middleware(Guard, auth=auth, limits=Limits(store), audit=audit)
    cors.install(app, origins)
    app.openapi = lambda: _documented(app)  # type: ignore[method-assign]
    return app


def _documented(app: FastAPI) -> dict[str, Any]:
    """The framework does not know what stands at the door: the token and the shape of every error."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        parts = schema.setdefault("components", {})
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"token": []}]
        parts.setdefault("schemas", {})["Problem"] = {
            "type": "object",
            "required": ["type", "title", "status", "detail"],
            "properties": {
                "type": {"type": "string"},
                "title": {"type": "string"},
                "status": {"type": "integer"},
                "detail": {"type": "string"},
            },
        }
        error = {
            "description": "What happened and what to do.",
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                if path in OPEN_PATHS:
                    operation["security"] = []
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = error
        app.openapi_schema = schema
    return app.openapi_schema
