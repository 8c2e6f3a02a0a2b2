"""Every error as problem+json (RFC 9457): what happened and what to do, never the inside of the server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from api.source import NotFound
from muster.blueprint import RETRY_VISIBILITY
from muster.errors import BadCommand, MusterError, Refused, TryLater

log = logging.getLogger(__name__)


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(body, status, headers, media_type="application/problem+json")


def of_error(error: MusterError) -> Response:
    """The type of an error decides its status."""
    match error:
        case BadCommand():
            return problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        case NotFound():
            return problem(HTTPStatus.NOT_FOUND, str(error))
        case Refused():
            return problem(HTTPStatus.CONFLICT, str(error))
        case TryLater():
            after = (error.after or RETRY_VISIBILITY).total_seconds()
            return problem(
                HTTPStatus.SERVICE_UNAVAILABLE, str(error), {"Retry-After": str(max(1, round(after)))}
            )
        case _:
            return unexpected(error)


def unexpected(error: Exception) -> Response:
    log.error("unexpected error", exc_info=error)
    return problem(
        HTTPStatus.INTERNAL_SERVER_ERROR, "an unexpected error; it is in the server's log, with its cause"
    )


def install(app: FastAPI) -> None:
    """Answer every foreseen error of `app` this way, the framework's own too; the guard answers the rest."""

    async def by_muster(_: Request, error: Exception) -> Response:
        assert isinstance(error, MusterError)
        return of_error(error)

    async def by_http(_: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem(error.status_code, str(error.detail), error.headers)

    async def by_validation(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"{where}: {first['msg']}")

    app.add_exception_handler(MusterError, by_muster)
    app.add_exception_handler(HTTPException, by_http)
    app.add_exception_handler(RequestValidationError, by_validation)
