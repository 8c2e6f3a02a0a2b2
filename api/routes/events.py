"""`GET /v1/events`: what happens, as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict

from fastapi import APIRouter, Depends, Request
from starlette.responses import StreamingResponse

from api.access import of_anybody, principal_of
from api.source import Event, FleetSource

#: Proxies close a connection that says nothing for about a minute.
KEEP_ALIVE_S = 15.0


def router(source: FleetSource) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["events"])

    @routes.get(
        "/events",
        summary="Watch what happens (server-sent events)",
        response_class=StreamingResponse,
        dependencies=[Depends(of_anybody)],
        responses={200: {"content": {"text/event-stream": {}}, "description": "One JSON object per event."}},
    )
    async def events(request: Request) -> StreamingResponse:
        # The first step, before the answer begins: a store that is away is still a 503.
        stream = source.events(KEEP_ALIVE_S)
        await anext(stream)
        return StreamingResponse(
            _lines(stream, principal_of(request).user_id), media_type="text/event-stream"
        )

    return routes


async def _lines(stream: AsyncIterator[Event | None], only: str | None) -> AsyncIterator[str]:
    """Comments keep the line open; the first one says that from here on nothing is missed. A user hears only
    what happens to its own worker."""
    yield ": listening\n\n"
    async for event in stream:
        if event is None:
            yield ": nothing new\n\n"
        elif only in (None, event.user_id):
            yield f"event: transition\ndata: {json.dumps(asdict(event), default=_text)}\n\n"


def _text(value: object) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
