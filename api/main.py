"""The API for gunicorn: `gunicorn -k uvicorn.workers.UvicornWorker api.main:app`.

`app` is built from the environment when it is first asked for, so that importing this module needs nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import cache

from fastapi import FastAPI

from api.app import create_app
from api.audit import write_log
from api.cors import origins_of
from api.fleet import Fleet
from api.orders import OrderDesk
from api.routes import orders
from api.tokens import Tokens
from muster.clients import aws_client, valkey_client
from muster.scrub import guard
from muster.settings import Settings
from muster.store import Store


def build(environ: Mapping[str, str]) -> FastAPI:
    """The API of the deployment that `environ` describes."""
    settings = Settings.from_env(environ)
    tokens = Tokens.of(settings)
    store = Store(valkey_client(settings), wait_replica=settings.valkey_wait_replica)
    fleet = Fleet(store, aws_client(settings, "sqs"), settings)
    return create_app(
        fleet,
        fleet.together,
        tokens,
        orders.router(OrderDesk(store)),
        origins=origins_of(settings.api_origins),
    )


@cache
def _app() -> FastAPI:
    guard()
    write_log(sys.stderr)
    return build(os.environ)


def __getattr__(name: str) -> FastAPI:
    if name == "app":
        return _app()
    raise AttributeError(name)
