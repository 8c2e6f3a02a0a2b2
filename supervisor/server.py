"""The API of a supervisor: the product's own application, in a thread of the supervisor's process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import uvicorn
from fastapi import APIRouter, Depends, FastAPI

from api.access import of_the_fleet
from api.app import create_app
from api.keyset import KeySet
from api.signing import LOCAL, Signer
from api.together import Together
from api.tokens import Tokens
from muster.errors import Refused
from muster.model import Phase
from muster.store import Store
from supervisor.api import SupervisorSource

_HOST = "127.0.0.1"  # for other machines put a proxy with TLS in front
_STOP_S = 5


def listen(port: int) -> socket.socket:
    """Take the port (0: any), or Refused."""
    try:
        return socket.create_server((_HOST, port))
    except OSError as taken:
        raise Refused(f"port {port} cannot be used ({taken}); choose another with --api-port") from taken


def application(source: SupervisorSource, store: Store, folder: Path) -> FastAPI:
    """The product's routes over the supervisor's workers, and the one route only a supervisor has. Its tokens
    are signed with the key of `folder`, which is made if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = KeySet(Signer.make(folder).jwks)
    only_here = APIRouter(prefix="/v1", tags=["supervisor"], dependencies=[Depends(of_the_fleet)])

    @only_here.post("/reload", summary="Read workers.yml again")
    def reload() -> Mapping[Phase, int]:
        return source.reload()

    return create_app(source, Together(store), Tokens(keys, LOCAL), only_here)


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
