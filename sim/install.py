"""Lets the real code of this process run in simulated worlds: virtual threads, no output, a small fleet."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from lambdas import telemetry, wiring
from lambdas.order_tasks import handler as order_tasks
from muster import blueprint
from muster import keys as core_keys
from muster.brokers import backoff
from muster.launchers import ecs as ecs_launcher
from sim import threads
from sim.ecs_world import SIM_MUTATE, SIM_READ
from sim.functions import HANDLER_MODULES
from sim.workers import SimControl, SimHeart
from worker import boot, broker, inbox, link

SIM_BUCKETS = 4


@contextmanager
def installed() -> Iterator[None]:
    """As long as this lasts, worlds can be run."""
    with ExitStack() as stack:
        for target, name, new in (
            (boot, "Heart", SimHeart),
            (boot, "Control", SimControl),
            (boot, "_log", lambda message: None),  # noqa: ARG005
            (traceback, "print_exc", lambda: None),
            (telemetry.Emitter, "add", lambda self, *rest, **more: None),  # noqa: ARG005
            (telemetry.Emitter, "flush", lambda self: None),  # noqa: ARG005
            (ecs_launcher, "ECS_MUTATE", SIM_MUTATE),
            (ecs_launcher, "ECS_READ", SIM_READ),
            # A handful of users: 256 buckets would be 250 empty questions per sweep.
            (blueprint, "INDEX_BUCKETS", SIM_BUCKETS),
            (core_keys, "INDEX_BUCKETS", SIM_BUCKETS),
            (wiring, "_wiring", None),
            (broker, "threading", threads),
            (link, "threading", threads),
            *((module, "say", lambda message: None) for module in (broker, inbox, link)),  # noqa: ARG005
            (backoff, "random", threads),
            (order_tasks, "ThreadPoolExecutor", threads.Executor),
            (order_tasks, "_count", lambda seen, looks: None),  # noqa: ARG005
        ):
            stack.enter_context(patch.object(target, name, new))
        for module in HANDLER_MODULES:
            level = module.log.log_level
            module.log.setLevel("CRITICAL")
            stack.callback(module.log.setLevel, level)
        yield
