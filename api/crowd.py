"""A route for the read that comes in crowds: described like every other, answered without the machinery.

The framework resolves dependencies, opens stacks and checks the answer again for every request, which costs
more than the read itself. Such a route has one path parameter, a user id, and guards as dependencies: both
are looked at here, by the same functions and in the same order.
"""

from __future__ import annotations

from typing import Any

from fastapi.routing import APIRoute
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from muster.commands import USER_ID
from muster.errors import BadCommand


class CrowdRoute(APIRoute):
    """`async def endpoint(user_id) -> T`, answered as JSON of T."""

    def __init__(self, *words: Any, **options: Any) -> None:
        super().__init__(*words, **options)
        self._shown: TypeAdapter[Any] = TypeAdapter(self.response_model)
        self.app = self._answer

    async def _answer(self, scope: Scope, _receive: Receive, send: Send) -> None:
        request = Request(scope)
        for guard in self.dependencies:
            assert guard.dependency is not None
            await guard.dependency(request)
        try:
            user_id = USER_ID.take(scope["path_params"]["user_id"])
        except ValueError as wrong:
            raise BadCommand(f"path.user_id: {wrong}") from wrong
        found = await self.endpoint(user_id)
        body = self._shown.dump_json(found)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
