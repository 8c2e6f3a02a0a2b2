"""`/`: the fleet page. Files that hold no data: what they show comes through the API, with a token."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.routing import Route

WEB = Path(__file__).parent.parent / "web"

_KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

#: Every file by its address. Nothing is looked up by a caller's words, so no other file can be had.
FILES = {"/" if path.stem == "index" else f"/{path.name}": path for path in sorted(WEB.iterdir())}

#: Own script and own style only. Trusted types make the browser refuse text that would become markup.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)


def router() -> APIRouter:
    """Takes no fleet, unlike its neighbours: the page is the same for all of them."""
    return APIRouter(routes=[_route(address, path) for address, path in FILES.items()])


def _route(address: str, path: Path) -> Route:
    content = path.read_bytes()
    # Asked for each time and answered by 304: a new release must never meet the script of the one before.
    headers = {
        "Content-Security-Policy": _POLICY,
        "Cache-Control": "no-cache",
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    }

    async def answer(request: Request) -> Response:
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=_KINDS[path.suffix])

    return Route(address, answer, include_in_schema=False)
