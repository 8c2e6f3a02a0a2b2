"""What the tests of the API and the CLI stand on: a fleet on real Valkey and moto's SQS, workers by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import boto3
import httpx
import uvicorn
from fastapi import APIRouter, FastAPI

from api.app import create_app
from api.auth import Role
from api.keyset import KeySet
from api.signing import LOCAL, Signer
from api.together import Together
from api.tokens import Tokens
from muster import blueprint, steps
from muster.model import Assignment, Cause, Via
from muster.settings import Settings
from muster.store import Store

SIGNER = Signer.new()


def bearer(role: Role, user_id: str | None = None, **claims: Any) -> dict[str, str]:
    """The header of somebody."""
    token = SIGNER.token(role, user_id, timedelta(days=1), **{"sub": user_id or role.value, **claims})
    return {"Authorization": f"Bearer {token}"}


BEARER = bearer(Role.OPERATOR)
TOKEN = BEARER["Authorization"].removeprefix("Bearer ")


def sqs_client() -> Any:
    return boto3.client(
        "sqs", region_name="us-east-1", aws_access_key_id="test", aws_secret_access_key="test"
    )


def settings_with_queues(sqs: Any, **more: Any) -> Settings:
    """Every queue of the blueprint, and settings that know where they are."""
    urls = {}
    for queue in blueprint.QUEUES:
        attributes = {"VisibilityTimeout": str(round(queue.visibility.total_seconds()))}
        if queue.fifo:
            attributes["FifoQueue"] = "true"
        name = "queue_" + queue.name.removesuffix(".fifo").replace("-", "_")
        urls[name] = sqs.create_queue(QueueName=queue.name, Attributes=attributes)["QueueUrl"]
    return Settings(**urls, **more)


def commands_in(sqs: Any, settings: Settings) -> list[str]:
    """Take the bodies of all waiting commands, in order."""
    bodies = []
    while True:
        answer = sqs.receive_message(QueueUrl=settings.queue_worker_control, MaxNumberOfMessages=10)
        if not (messages := answer.get("Messages")):
            return bodies
        for message in messages:
            bodies.append(message["Body"])
            sqs.delete_message(QueueUrl=settings.queue_worker_control, ReceiptHandle=message["ReceiptHandle"])


def begin(store: Store, user: str, cause: Cause = Cause.START, issued_at_ms: int = 1_000) -> Assignment:
    """A start begins, as worker_control does it."""
    seen = store.one(steps.read_user(user)).epoch
    begun, _ = store.run(
        steps.begin_start(user, cause, issued_at_ms, f"c-{user}", seen_epoch=seen), steps.index_add(user)
    )
    return Assignment(user, begun.epoch, Via.COLD, cause, begun.issued_at_ms, begun.command_id)


def run_worker(store: Store, given: Assignment, *, ready: bool = True, state: str = '{"pid":4711}') -> None:
    """A worker takes its mark and beats, as the worker does it."""
    task = f"task-{given.user}"
    assert store.one(steps.take_mark(given, f"w-{given.user}", task, "v1")) == ("taken",)
    store.one(steps.beat_mark(given, f"w-{given.user}", task, "v1", state, ready=ready))


def app_of(source: Any, *more: APIRouter) -> FastAPI:
    """The application over a fleet of the tests, with the fleet's own store."""
    store = getattr(source, "together", None) or Together(source._store)
    return create_app(source, store, Tokens(KeySet(SIGNER.jwks), LOCAL), *more)


@contextmanager
def served(source: Any, *more: APIRouter) -> Iterator[str]:
    """The API on a real socket; yields its address."""
    config = uvicorn.Config(app_of(source, *more), port=0, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 30
    while not server.started:
        assert thread.is_alive()
        assert time.monotonic() < deadline, "the API did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive(), "the API did not stop"


def client_of(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers=BEARER, timeout=30)
