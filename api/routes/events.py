"""`GET /v1/events`: what happens, as server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict

from fastapi import APIRouter
from starlette.responses import StreamingResponse

from api.source import FleetSource

#: Proxies close a connection that says nothing for about a minute.
KEEP_ALIVE_S = 15.0


def router(source: FleetSource) -> APIRouter:
    routes = APIRouter(prefix="/v1", tags=["events"])

    @routes.get(
        "/events",
        summary="Watch what happens (server-sent events)",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}, "description": "One JSON object per event."}},
    )
    async def events() -> StreamingResponse:
        # The first step, before the answer begins: a store that is away is still a 503.
        stream = source.events(KEEP_ALIVE_S)
        await anext(stream)
        return StreamingResponse(_lines(stream), media_type="text/event-stream")

    return routes


async def _lines(stream: AsyncIterator[object]) -> AsyncIterator[str]:
    """Comments keep the line open; the first one says that from here on nothing is missed."""
    yield ": listening\n\n"
    async for event in stream:
        if event is None:
            yield ": nothing new\n\n"
        else:
            yield f"event: transition\ndata: {json.dumps(asdict(event), default=_text)}\n\n"  # type: ignore[call-overload]


def _text(value: object) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
