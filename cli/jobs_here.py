"""Job pools without an engine: the API's own routes, run inside the command on a backend named by its URL.

`muster jobs ... --url sqlite:///jobs.db` asks the same routes in the same words as `muster jobs ...` asks the
engine; only nobody is listening on a port. Made for cron, and for a machine with nothing but a file.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import httpx
from fastapi import FastAPI

from api.access import of_the_fleet
from api.problems import install
from api.routes import jobs as routes
from cli.session import Cli, Code, Failure
from muster.errors import MusterError, Refused
from muster.jobs import connect
from muster.jobs.capacity import ProcessLauncher
from muster.jobs.service import WorkAdded
from muster.jobs.triggers import Effects, Trigger, on_work_added


@dataclass
class Here(Cli):
    """A `Cli` whose requests never leave the process."""

    jobs_url: str = ""
    worker_options: tuple[str, ...] = ()
    triggers: Sequence[Trigger] | None = None

    @property
    def url(self) -> str:
        return "http://here"

    @cached_property
    def http(self) -> httpx.Client:
        try:
            return httpx.Client(transport=_Inside(self._app()), base_url=self.url)
        except (MusterError, OSError, sqlite3.Error) as error:
            code = Code.USAGE if isinstance(error, Refused) else Code.UNREACHABLE
            raise Failure(code, f"--url {self.jobs_url}: {error}") from error

    def _app(self) -> FastAPI:
        jobs = connect(self.jobs_url)
        launch = ProcessLauncher(self.jobs_url, self.worker_options)
        app = FastAPI()
        install(app)
        app.include_router(routes.router(jobs, launch, None if self.triggers is None else self._wake))
        # Whoever may open the backend may do everything with it: there is no door here to guard.
        app.dependency_overrides[of_the_fleet] = lambda: None
        return app

    def _wake(self, check: WorkAdded) -> WorkAdded:
        return on_work_added(self.triggers or (), Effects(check, self.jobs_url))


class _Inside(httpx.BaseTransport):
    """A request becomes a call of the application, a response its answer."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return asyncio.run(self._ask(request))

    async def _ask(self, request: httpx.Request) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._app)
        inner = httpx.Request(request.method, request.url, headers=request.headers, content=request.read())
        answer = await transport.handle_async_request(inner)
        return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())
