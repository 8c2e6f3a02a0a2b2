"""Lambda: runs the real handlers; schedules, event source, asynchronous invokes, timeouts and repeats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from lambdas.maintenance import handler as maintenance
from lambdas.maintenance_worker import handler as maintenance_worker
from lambdas.order_tasks import handler as order_tasks
from lambdas.pool_manager import handler as pool_manager
from lambdas.worker_control import handler as worker_control
from local.event_source import failed_records, record
from muster.blueprint import (
    BATCH_RECORDS,
    FN_MAINTENANCE,
    FN_MAINTENANCE_WORKER,
    FN_ORDER_TASKS,
    FN_POOL_MANAGER,
    FN_WORKER_CONTROL,
    ORDER_TASKS,
    WORKER_CONTROL,
    Function,
    Queue,
)
from muster.maintenance import Batch
from sim.loop import Actor, Timer

if TYPE_CHECKING:
    from sim.sqs_world import Message
    from sim.world import World

_HANDLERS: dict[str, tuple[Function, Callable[[dict[str, Any], Any], Any]]] = {
    "worker_control": (FN_WORKER_CONTROL, worker_control.handler),
    "order_tasks": (FN_ORDER_TASKS, order_tasks.handler),
    "maintenance": (FN_MAINTENANCE, maintenance.handler),
    "maintenance_worker": (FN_MAINTENANCE_WORKER, maintenance_worker.handler),
    "pool_manager": (FN_POOL_MANAGER, pool_manager.handler),
}
HANDLER_MODULES = (worker_control, order_tasks, maintenance, maintenance_worker, pool_manager)


class Context:
    """What Lambda tells a handler of itself."""

    def __init__(self, world: World, function: Function, request_id: str) -> None:
        self.function_name = function.name
        self.aws_request_id = request_id
        self._world = world
        self._deadline = world.loop.now + function.timeout.total_seconds()

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._deadline - self._world.loop.now) * 1000))


class Functions:
    """All functions of the deployment and what starts them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.invocations = 0
        self.running: list[Actor] = []
        self.left_over: list[Actor] = []  #: what ran when the faults ended: some of it may be paused for long
        self.repeat_next: dict[str, int] = {}  #: the next invocations of this function come twice
        self.drop_next: dict[str, int] = {}  #: ... or not at all
        self._sources = [
            EventSource(self, WORKER_CONTROL, "worker_control", world.people.handled),
            EventSource(self, ORDER_TASKS, "order_tasks", lambda _: None),
        ]

    def start(self) -> None:
        """Start the schedules."""
        rng = self.world.rng
        self._every(FN_MAINTENANCE, "maintenance", rng.uniform(5, 60))
        self._every(FN_POOL_MANAGER, "pool_manager", rng.uniform(0, 2))

    def _every(self, function: Function, name: str, first: float) -> None:
        assert function.every is not None
        period = function.every.total_seconds()

        def tick() -> None:
            self.world.loop.after(period, tick)
            self.invoke(name, {"source": "aws.events"})

        self.world.loop.after(first, tick)

    def invoke(self, name: str, event: dict[str, Any]) -> None:
        """An asynchronous invoke: may come twice, may be lost."""
        if self.drop_next.get(name, 0) > 0:
            self.drop_next[name] -= 1
            self.world.count("invoke lost")
            return
        self._run(name, event)
        if self.repeat_next.get(name, 0) > 0:
            self.repeat_next[name] -= 1
            self.world.count("invoke twice")
            self.world.loop.after(self.world.rng.uniform(0.0, 3.0), lambda: self._run(name, event))

    def invoke_batches(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            wire = asdict(batch) | {"buckets": list(batch.buckets)}
            event = {"source": "muster.sweep", "batch": wire}
            self.world.effect("lambda", "invoke", partial(self.invoke, "maintenance_worker", event))

    def wake_pool(self) -> None:
        self.world.effect("lambda", "invoke", lambda: self.invoke("pool_manager", {"source": "muster.claim"}))

    def _run(self, name: str, event: dict[str, Any], done: Callable[[Any], None] | None = None) -> None:
        """One invocation. `done` gets the answer; a crash, an error or a timeout gives none."""
        function, handler = _HANDLERS[name]
        self.invocations += 1
        actor = Actor(f"{name}-{self.invocations}", name)
        context = Context(self.world, function, f"run-{self.invocations:05d}")
        timeout = self.world.loop.after(function.timeout.total_seconds(), lambda: self._time_out(actor))

        def body() -> None:
            try:
                answer = handler(event, context)
            except Exception as failed:  # noqa: BLE001 - what Lambda does with an exception: the invocation failed
                self.world.failed(actor, failed)
                return
            finally:
                timeout.cancel()
                self.running.remove(actor)
            if done is not None:
                done(answer)

        self.running.append(actor)
        # The hub starts it, so that whoever invoked goes on at once.
        self.world.loop.after(0.0, lambda: self.world.loop.spawn(actor, body))

    def _time_out(self, actor: Actor) -> None:
        self.world.count("function timed out")
        self.world.loop.kill(actor)


class EventSource:
    """Polls one queue and hands its messages to one function, as Lambda does."""

    def __init__(self, functions: Functions, spec: Queue, name: str, handled: Callable[[str], None]) -> None:
        self._functions = functions
        self._world = functions.world
        self._name = name
        self._arn = f"arn:aws:sqs:us-east-1:000000000000:{spec.name}"
        self._handled = handled
        self._poll: Timer | None = None
        self._poll_at = float("inf")
        self._queue = self._world.sqs.queues[spec.name]
        self._queue.on_visible = self._look_in

    def _look_in(self, seconds: float) -> None:
        """Poll the queue in `seconds`, unless an earlier look is planned."""
        at = self._world.loop.now + seconds
        if self._poll is not None and self._poll_at <= at:
            return
        if self._poll is not None:
            self._poll.cancel()
        self._poll_at = at
        self._poll = self._world.loop.after(seconds + self._world.rng.uniform(0.002, 0.05), self._receive)

    def _receive(self) -> None:
        self._poll, self._poll_at = None, float("inf")
        batch = self._queue.receive(self._world.rng.choice((1, 2, BATCH_RECORDS)))
        if not batch:
            return
        self._deliver(batch)
        if self._queue.duplicates > 0:
            self._queue.duplicates -= 1
            self._world.count("sqs duplicate")
            self._world.loop.after(self._world.rng.choice((0.0, 0.01, 1.0)), lambda: self._deliver(batch))
        self._queue.look_again()

    def _deliver(self, batch: list[Message]) -> None:
        event = {"Records": [record(message.received(), self._arn, "us-east-1") for message in batch]}
        sent = [message.message_id for message in batch]
        handles = {message.message_id: message.handle for message in batch}

        def done(answer: Any) -> None:
            failed = failed_records(answer, sent)
            for message_id in sent:
                if message_id not in failed and self._queue.delete(handles[message_id]):
                    self._handled(message_id)
            self._queue.look_again()

        self._functions._run(self._name, event, done)
