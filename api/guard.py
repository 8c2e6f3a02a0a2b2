"""The door of the API: token, size of the body, headers of the answer, and an answer for every accident.

Plain ASGI, because it stands before every request: wrapping an event stream costs nothing, and nothing behind
it, a router's 404 included, answers somebody without a token.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.audit import Audit
from api.auth import Authenticator
from api.problems import problem, unexpected
from api.routes.page import FILES

MAX_BODY_BYTES = 64 * 1024
TOO_LARGE = f"the body may have {MAX_BODY_BYTES} bytes at most"
#: Load balancers, which ask for health, hold no token; the page's own files hold no data.
OPEN_PATHS = frozenset({"/healthz", "/readyz", *FILES})

_SECURITY_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
}


class Guard:
    def __init__(self, app: ASGIApp, auth: Authenticator, audit: Audit) -> None:
        self._app = app
        self._auth = auth
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        started = False

        async def send_guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if (audited := scope.get("state", {}).get("audited")) is not None:
                    await self._audit.end(audited, int(message["status"]))
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        if scope["path"] not in OPEN_PATHS:
            scheme, _, token = headers.get("authorization", "").partition(" ")
            principal = self._auth.authenticate(token.strip()) if scheme.lower() == "bearer" else None
            if principal is None:
                missing = problem(
                    401,
                    "a bearer token is needed: 'Authorization: Bearer <token>'",
                    {"WWW-Authenticate": "Bearer"},
                )
                await missing(scope, receive, send_guarded)
                return
            scope.setdefault("state", {})["principal"] = principal

        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > MAX_BODY_BYTES:
            await problem(413, TOO_LARGE)(scope, receive, send_guarded)
            return
        seen = 0

        async def receive_limited() -> Message:
            nonlocal seen
            message = await receive()
            seen += len(message.get("body", b""))
            if seen > MAX_BODY_BYTES:
                raise HTTPException(413, TOO_LARGE)
            return message

        try:
            await self._app(scope, receive_limited, send_guarded)
        except Exception as error:
            if started:
                raise  # half an answer is out already: the server closes the connection
            await unexpected(error)(scope, receive, send_guarded)
