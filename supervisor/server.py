"""The API of a supervisor: the product's own application, in a thread of the supervisor's process."""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import uvicorn
from fastapi import APIRouter, Depends, FastAPI

from api.access import of_the_fleet
from api.app import create_app
from api.auth import StaticToken
from api.main import TOKEN_VARIABLE
from muster.errors import Refused
from muster.model import Phase
from muster.store import Store
from supervisor.api import SupervisorSource

_HOST = "127.0.0.1"  # for other machines put a proxy with TLS in front
_STOP_S = 5


def token(environment: Mapping[str, str], folder: Path) -> tuple[str, str]:
    """The token callers must show, and where a person finds it: MUSTER_API_KEY, else a file made once."""
    if given := environment.get(TOKEN_VARIABLE):
        return given, f"${TOKEN_VARIABLE}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "token"
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_urlsafe(32), encoding="utf-8")
    return path.read_text(encoding="utf-8"), str(path)


def listen(port: int) -> socket.socket:
    """Take the port (0: any), or Refused."""
    try:
        return socket.create_server((_HOST, port))
    except OSError as taken:
        raise Refused(f"port {port} cannot be used ({taken}); choose another with --api-port") from taken


def application(source: SupervisorSource, store: Store, secret: str) -> FastAPI:
    """The product's routes over the supervisor's workers, and the one route only a supervisor has."""
    only_here = APIRouter(prefix="/v1", tags=["supervisor"], dependencies=[Depends(of_the_fleet)])

    @only_here.post("/reload", summary="Read workers.yml again")
    def reload() -> Mapping[Phase, int]:
        return source.reload()

    return create_app(source, store, StaticToken(secret), only_here)


class ApiServer:
    """Serves until stopped."""

    def __init__(self, app: FastAPI, port: socket.socket) -> None:
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=_STOP_S)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([port],), name="api", daemon=True)
        self.url = f"http://{_HOST}:{port.getsockname()[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Refuse new requests and let those under way finish, for a few seconds."""
        self._server.should_exit = True
        self._thread.join(2 * _STOP_S)
