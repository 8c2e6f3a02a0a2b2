"""The API for gunicorn: `gunicorn -k uvicorn.workers.UvicornWorker api.main:app`.

`app` is built from the environment when it is first asked for, so that importing this module needs nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from fastapi import FastAPI

from api.app import create_app
from api.audit import write_log
from api.cors import origins_of
from api.fleet import Fleet
from api.orders import OrderDesk
from api.routes import jobs, orders
from api.tokens import Tokens
from muster.clients import aws_client, valkey_client
from muster.errors import Refused
from muster.functions import invoke, job_pool_event
from muster.jobs.connection import on_store
from muster.jobs.triggers import POOL_MANAGER, Effects, TriggerType, load, on_work_added
from muster.scrub import guard
from muster.settings import Settings
from muster.store import Store

#: A push waits for pool_manager to be asked: the answer to that is short, and the schedule is behind it.
_ASK_TIMEOUT_S = 3.0


def build(environ: Mapping[str, str]) -> FastAPI:
    """The API of the deployment that `environ` describes."""
    settings = Settings.from_env(environ)
    tokens = Tokens.of(settings)
    store = Store(valkey_client(settings), wait_replica=settings.valkey_wait_replica)
    fleet = Fleet(store, aws_client(settings, "sqs"), settings)
    ask = _ask_pool_manager(settings)
    return create_app(
        fleet,
        fleet.together,
        tokens,
        orders.router(OrderDesk(store)),
        jobs.router(on_store(store, settings.valkey_url), wake=_wake(settings, ask), ask=ask),
        origins=origins_of(settings.api_origins),
    )


def _ask_pool_manager(settings: Settings) -> Callable[[str], None]:
    """Job workers are launched by pool_manager alone; this process has no right to."""
    name = settings.fn_pool_manager
    if not name:
        raise Refused("MUSTER_FN_POOL_MANAGER is not set; without it nobody can be asked for job workers")
    functions = aws_client(settings, "lambda", read_timeout_s=_ASK_TIMEOUT_S)
    return lambda pool: invoke(functions, name, job_pool_event(pool))


def _wake(settings: Settings, ask: Callable[[str], None]) -> jobs.Wake | None:
    """The triggers of the deployment's file, if it has one: no process, no function but pool_manager."""
    if not settings.job_triggers:
        return None
    found = load(Path(settings.job_triggers))
    for trigger in found:
        if trigger.type is TriggerType.SUBPROCESS:
            raise Refused(
                f"triggers {settings.job_triggers}: trigger {trigger.name}: the deployed API starts no "
                f"processes; use {TriggerType.LAMBDA} or {TriggerType.IN_LOOP}"
            )
        if trigger.type is TriggerType.LAMBDA and trigger.function not in (
            POOL_MANAGER,
            settings.fn_pool_manager,
        ):
            raise Refused(
                f"triggers {settings.job_triggers}: trigger {trigger.name}: the API's role may invoke "
                f"{POOL_MANAGER} and no other function, not {trigger.function}"
            )
    return lambda check: on_work_added(
        found, Effects(check, settings.valkey_url, invoke=lambda _function, event: ask(event["pool_id"]))
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
