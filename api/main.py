"""The API for gunicorn: `gunicorn -k uvicorn.workers.UvicornWorker api.main:app`.

`app` is built from the environment when it is first asked for, so that importing this module needs nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache

from fastapi import FastAPI

from api.app import create_app
from api.auth import StaticToken
from api.fleet import Fleet
from api.orders import OrderDesk
from api.routes import orders
from muster.clients import aws_client, valkey_client
from muster.errors import Refused
from muster.scrub import guard, learn
from muster.settings import Settings
from muster.store import Store

TOKEN_VARIABLE = "MUSTER_API_KEY"  # noqa: S105 - the name of the variable, not a secret


def build(environ: Mapping[str, str]) -> FastAPI:
    """The API of the deployment that `environ` describes."""
    if not (token := environ.get(TOKEN_VARIABLE)):
        raise Refused(f"{TOKEN_VARIABLE} is not set; it holds the token that callers must show")
    learn(token)
    settings = Settings.from_env(environ)
    store = Store(valkey_client(settings), wait_replica=settings.valkey_wait_replica)
    fleet = Fleet(store, aws_client(settings, "sqs"), settings)
    return create_app(fleet, store, StaticToken(token), orders.router(OrderDesk(store)))


@cache
def _app() -> FastAPI:
    guard()
    return build(os.environ)


def __getattr__(name: str) -> FastAPI:
    if name == "app":
        return _app()
    raise AttributeError(name)
