"""The door of the API: token, limits, size and time of the body, headers of the answer, an answer for every
accident.

Plain ASGI, because it stands before every request: wrapping an event stream costs nothing, and nothing behind
it, a router's 404 included, answers somebody without a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.access import READS
from api.audit import Audit
from api.auth import Authenticator, BadToken, Principal
from api.limits import Limits, Taken
from api.problems import of_error, problem, unexpected
from api.routes.page import FILES
from muster.errors import TryLater

MAX_BODY_BYTES = 64 * 1024
TOO_LARGE = f"the body may have {MAX_BODY_BYTES} bytes at most"
#: A body that trickles in holds a connection and nothing else, and not for ever.
BODY_S = 10.0
TOO_SLOW = f"the body must be here within {BODY_S:.0f} seconds"
#: Load balancers, which ask for health, hold no token; the page's own files hold no data.
OPEN_PATHS = frozenset({"/healthz", "/readyz", *FILES})

_SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cache-control", b"no-store"),
]
_SECURITY_NAMES = frozenset(name for name, _ in _SECURITY_HEADERS)


class Guard:
    def __init__(self, app: ASGIApp, auth: Authenticator, limits: Limits, audit: Audit) -> None:
        self._app = app
        self._auth = auth
        self._limits = limits
        self._audit = audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _Visit(scope, receive, send, self._audit).run(self._app, self._auth, self._limits)
        else:
            await send({"type": "websocket.close", "code": 1008})


class _Visit:
    """One request at the door."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, audit: Audit) -> None:
        self._scope, self._receive, self._send, self._audit = scope, receive, send, audit
        self._started = False
        self._dropped = False
        self._seen_bytes = 0
        self._body_due: float | None = None
        #: A read's place in its bearer's limit: asked for when it came, looked at before it is answered.
        self._taken: Taken | None = None

    async def run(self, app: ASGIApp, auth: Authenticator, limits: Limits) -> None:
        scope = self._scope
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))  # of those that came twice, the first
        try:
            if scope["path"] not in OPEN_PATHS:
                principal = await _principal(auth, headers)
                scope.setdefault("state", {})["principal"] = principal
                await self._take(limits, principal)
            length = headers.get(b"content-length")
            if length is not None and length.isdigit() and int(length) > MAX_BODY_BYTES:
                raise _Answer(problem(413, TOO_LARGE))
            await app(scope, self._receive_limited, self._send_guarded)
        except _Answer as refused:
            await refused.response(scope, self._receive, self._send_guarded)
        except Exception as error:
            if self._started:
                raise  # half an answer is out already: the server closes the connection
            await unexpected(error)(scope, self._receive, self._send_guarded)

    async def _take(self, limits: Limits, who: Principal) -> None:
        """A change waits for its place. A read goes on meanwhile, in the same round trip: what it found is
        thrown away if there was none. A bearer known to be empty gets no further than this."""
        change = self._scope["method"] not in READS
        taken = limits.take(who, change=change)
        if change or taken.refused:
            if wait_s := await taken.wait_s():
                raise _Answer(_too_many(wait_s))
        else:
            self._taken = taken

    async def _send_guarded(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            if self._taken is not None:
                wait_s, self._taken = await self._taken.wait_s(), None
                if wait_s:
                    self._dropped = True
                    await _too_many(wait_s)(self._scope, self._receive, self._send_bare)
            if self._dropped:
                return
            await self._send_bare(message)
        elif not self._dropped:
            await self._send(message)

    async def _send_bare(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._started = True
            if (audited := self._scope.get("state", {}).get("audited")) is not None:
                await self._audit.end(audited, int(message["status"]))
            message["headers"] = _secured(message.get("headers", ()))
        await self._send(message)

    async def _receive_limited(self) -> Message:
        if self._body_due is None:
            self._body_due = asyncio.get_running_loop().time() + BODY_S
        if self._started:
            return await self._receive()  # waits for the client to leave, for as long as that takes
        try:
            async with asyncio.timeout_at(self._body_due):
                message = await self._receive()
        except TimeoutError:
            raise HTTPException(408, TOO_SLOW) from None
        self._seen_bytes += len(message.get("body", b""))
        if self._seen_bytes > MAX_BODY_BYTES:
            raise HTTPException(413, TOO_LARGE)
        return message


def _secured(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """With every security header that the answer does not set itself."""
    answer = [*headers]
    if _SECURITY_NAMES.isdisjoint([name for name, _ in answer]):
        return answer + _SECURITY_HEADERS
    present = {name for name, _ in answer}
    return answer + [header for header in _SECURITY_HEADERS if header[0] not in present]


class _Answer(Exception):
    """The visit ends here, with this."""

    def __init__(self, response: Response) -> None:
        self.response = response


async def _principal(auth: Authenticator, headers: Mapping[bytes, bytes]) -> Principal:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _Answer(_not_known("a bearer token is needed: 'Authorization: Bearer <token>'", "Bearer"))
    try:
        return await auth.authenticate(token.strip())
    except BadToken as bad:
        raise _Answer(_not_known(str(bad), 'Bearer error="invalid_token"')) from bad
    except TryLater as away:
        raise _Answer(of_error(away)) from away


def _not_known(detail: str, challenge: str) -> Response:
    return problem(401, detail, {"WWW-Authenticate": challenge})


def _too_many(wait_s: int) -> Response:
    detail = f"too many requests of yours; wait {wait_s} s"
    return problem(429, detail, {"Retry-After": str(wait_s)})
