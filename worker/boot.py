"""The real worker process: settings, signals, threads; the decisions are in `life` and `heart`."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from muster import steps
from muster.blueprint import POOL_BEAT
from muster.claims import ClaimChannel
from muster.clients import open_ahead, valkey_client
from muster.clock import SystemClock
from muster.errors import LostLease, MusterError
from muster.model import Assignment, Cause, Phase, Via, start_latency_ms
from muster.scrub import guard, hide
from muster.settings import Settings
from muster.store import Store
from muster.traces import Spans, trace_of
from worker.control import Control
from worker.exits import Exit
from worker.heart import Heart
from worker.lease import Lease
from worker.life import AwaitClaim, Effect, Me, Pause, cold_start, pool_wait
from worker.session import Context, Preloads, SessionRefused, session_named

#: What a worker needs at once when its user comes: one for its steps, one to hear the control channel.
_CONNECTIONS = 2


@dataclass(slots=True)
class Moments:
    """When this worker learned of its user, and when it had the mark (seconds since 1970)."""

    woken: float
    taken: float = 0.0


def main() -> int:
    moments = Moments(woken=time.time())
    guard()
    try:
        settings = Settings.from_env(os.environ)
        given = _cold_assignment(os.environ)
        session = session_named(os.environ.get("MUSTER_SESSION", "idle"))
    except (MusterError, KeyError, ValueError) as wrong:
        print(f"worker: {wrong}; see docs/reference/settings.md", file=sys.stderr)
        return Exit.USAGE
    stopping = threading.Event()
    _on_stop(stopping)
    clock = SystemClock()
    store = Store(valkey_client(settings))
    me = Me(
        # Drawn here, not at import: a fork server imports this module once for all its children.
        worker_id=f"w-{uuid.uuid4().hex[:16]}",
        task_id=_task_id(os.environ),
        version=settings.version,
        pool=settings.pool,
        launch_id=os.environ.get("MUSTER_LAUNCH_ID", ""),
        host=socket.gethostname(),
        store=store,
        clock=clock,
        lease=Lease(clock),
        stopping=stopping.is_set,
        log=_log,
    )
    if given:
        taken = _drive(cold_start(me, given), None, stopping, moments)
    else:
        if isinstance(session, Preloads):
            session.preload()
        open_ahead(store.client, _CONNECTIONS)
        channel = _channel(settings, me.worker_id)
        _on_stop(stopping, channel.wake)
        taken = _drive(pool_wait(me), channel, stopping, moments)
        _on_stop(stopping)
    if isinstance(taken, Exit):
        return taken
    spans = Spans(settings.otlp_endpoint, "muster-worker")
    return serve(me, taken, session, stopping, lambda: _tell_ready(taken, moments, spans))


def serve(
    me: Me, given: Assignment, session: Any, stopping: threading.Event, when_ready: Callable[[], None]
) -> Exit:
    """Act for the user until told to stop; let go of the mark last."""

    def stop(why: str) -> None:
        _log(f"told to stop: {why}")
        stopping.set()

    control = Control(me.store.client, given, stop, me.log)
    state = {"phase": Phase.CONNECTING.value, "pid": os.getpid(), "host": me.host, "worker_id": me.worker_id}
    ctx = Context(given, me.lease, stopping, beat_now=lambda: heart.beat(), state=state)
    heart = Heart(me, ctx, wait=control.wait)
    heart.start()
    code, why = Exit.DONE, "drained"
    try:
        try:
            session.open(ctx)
            control.listen()
            heart.ready = True
            ctx.publish(phase=Phase.READY.value)
            when_ready()
            session.run(ctx)
        finally:
            ctx.state = ctx.state | {"phase": Phase.DRAINING.value}
            session.close(ctx)
    except SessionRefused as refused:
        code, why = Exit.REFUSED, str(refused)
    except LostLease as lost:
        code, why = Exit.LEASE_LOST, str(lost)
    except Exception as failed:  # noqa: BLE001 - user code may raise anything; the reason must be seen
        code, why = Exit.SESSION_FAILED, hide(f"session failed: {failed!r}")
        import traceback

        traceback.print_exc()
    if me.lease.ended:
        code = Exit.FENCED if me.lease.ended.startswith("fenced") else Exit.LEASE_LOST
        why = me.lease.ended
    heart.stop()
    _log(f"exit {int(code)} ({code.name.lower()}): {why}")
    try:
        final = code is Exit.REFUSED
        me.store.one(steps.drop_mark(given.user, given.epoch, me.worker_id, why, final=final))
    except MusterError as away:
        _log(f"the mark runs out by itself: {away}")
    return code


def _drive(
    life: Generator[Effect, Any, Assignment | Exit],
    channel: ClaimChannel | None,
    stopping: threading.Event,
    moments: Moments,
) -> Assignment | Exit:
    """Answer what a life waits for, in real time. A failing wait is thrown into the life, which knows."""
    answer: Any = None
    error: MusterError | None = None
    while True:
        try:
            effect = life.throw(error) if error else life.send(answer)
        except StopIteration as end:
            outcome: Assignment | Exit = end.value
            moments.taken = time.time()
            return outcome
        answer, error = None, None
        match effect:
            case Pause(seconds):
                stopping.wait(seconds)
            case AwaitClaim(seconds) if channel is not None:
                try:
                    answer = channel.receive(seconds) if not stopping.is_set() else None
                    moments.woken = time.time()
                except MusterError as away:
                    error = away


def _on_stop(stopping: threading.Event, wake: Callable[[], None] = lambda: None) -> None:
    """On SIGTERM or SIGINT: wish to stop, and end a blocking wait for a claim."""

    def stop(*_: Any) -> None:
        if not stopping.is_set():
            stopping.set()
            wake()

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)


def _channel(settings: Settings, receiver: str) -> ClaimChannel:
    if settings.claim_channel == "valkey":
        from muster.claims import ValkeyChannel

        return ValkeyChannel(
            valkey_client(settings, blocking_s=POOL_BEAT.total_seconds()), settings.pool, receiver
        )
    from muster.aws import aws
    from muster.claims import SqsChannel

    return SqsChannel(aws(settings, "sqs"), settings.queue_pool_claim)


def _cold_assignment(environ: Any) -> Assignment | None:
    """The user this process was launched for, or None for a pool worker."""
    if not environ.get("MUSTER_USER"):
        return None
    return Assignment(
        user=environ["MUSTER_USER"],
        epoch=int(environ["MUSTER_EPOCH"]),
        via=Via.COLD,
        cause=Cause(environ.get("MUSTER_CAUSE", Cause.START)),
        issued_at_ms=int(environ.get("MUSTER_ISSUED_AT", "0")),
        command_id=environ.get("MUSTER_COMMAND_ID", ""),
        credentials_ref=environ.get("MUSTER_CREDENTIALS_REF", ""),
    )


def _task_id(environ: Any) -> str:
    """The launcher's name for this process: given locally, asked of the agent on ECS."""
    if known := environ.get("MUSTER_TASK_ID"):
        return str(known)
    if agent := environ.get("ECS_CONTAINER_METADATA_URI_V4"):
        from urllib.request import urlopen

        with urlopen(f"{agent}/task", timeout=2) as answer:  # noqa: S310 - the agent's own http address
            return str(json.load(answer)["TaskARN"])
    return f"pid-{os.getpid()}"


def _tell_ready(given: Assignment, moments: Moments, spans: Spans) -> None:
    """One EMF line on standard output, which the log driver's group turns into the StartLatency metric; and
    the start's own spans. A repair began with its epoch: the owner's command may be days old."""
    via = "repair" if given.cause is Cause.REPAIR else given.via.value
    now = time.time()
    took_ms = start_latency_ms(given.cause, given.epoch, given.issued_at_ms, round(now * 1000))
    trace = trace_of(given.command_id, given.cause, given.epoch)
    spans.add(
        trace, "start", now - took_ms / 1000, now, root=True, via=via, cause=given.cause, user_id=given.user
    )
    spans.add(trace, "take mark", moments.woken, moments.taken)
    spans.add(trace, "open session", moments.taken, now)
    spans.flush_soon()
    spec = {
        "Namespace": "Muster",
        "Dimensions": [["via"]],
        "Metrics": [{"Name": "StartLatency", "Unit": "Milliseconds"}],
    }
    line = {"_aws": {"Timestamp": round(now * 1000), "CloudWatchMetrics": [spec]}, "via": via}
    print(json.dumps(line | {"StartLatency": took_ms}), flush=True)


def _log(message: str) -> None:
    print(json.dumps({"at": round(time.time(), 3), "pid": os.getpid(), "message": message}), flush=True)
