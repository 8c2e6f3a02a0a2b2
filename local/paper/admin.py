"""Audits and faults, for tests and the engine: no key is asked for, so the server listens on loopback."""

from __future__ import annotations

from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from local.paper import wire
from local.paper.book import Book
from local.paper.matching import Matching
from local.paper.streams import Streams


def admin_routes(book: Book, matching: Matching, streams: Streams) -> list[Route]:
    """What the book knows, read only; the knobs; and the axe."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def orders(_: Request) -> Response:
        return JSONResponse(book.all_orders())

    async def sessions(_: Request) -> Response:
        return JSONResponse(book.all_sessions())

    async def faults(_: Request) -> Response:
        return JSONResponse(asdict(matching.faults))

    async def turn_faults(request: Request) -> Response:
        try:
            knobs = await wire.body(request)
            if not isinstance(knobs, dict):
                raise ValueError("the knobs must be an object")
            matching.faults = matching.faults.changed(knobs)
        except (wire.Invalid, ValueError) as wrong:
            return JSONResponse({"message": str(wrong)}, 422)
        return await faults(request)

    async def drop_streams(request: Request) -> Response:
        return JSONResponse({"dropped": streams.drop(request.query_params.get("key_id"))})

    return [
        Route("/health", health),
        Route("/audit/orders", orders),
        Route("/audit/sessions", sessions),
        Route("/admin/faults", faults, methods=["GET"]),
        Route("/admin/faults", turn_faults, methods=["PATCH"]),
        Route("/admin/drop-streams", drop_streams, methods=["POST"]),
    ]
