"""How each kind of fault strikes the world. One function per kind; the plan names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from muster import warm_pool
from muster.budget import Priority
from muster.errors import TryLater
from sim.loop import Actor
from sim.plan import Fault

if TYPE_CHECKING:
    from sim.broker_world import BrokerWorld
    from sim.workers import SimWorker
    from sim.world import World

#: Faults that wait for the next effect of their target, a kind of process or the name of an effect (or for
#: the one after `skip` more): the process ends before or after it, the request or its answer is lost, or the
#: process hangs before or after it.
STRIKES = ("crash_before", "crash_after", "lost", "answer_lost", "pause", "stall")

Strike = Callable[["World", Fault], None]


def strike(world: World, fault: Fault) -> None:
    """Let this fault happen now."""
    world.count(f"{fault.kind} {fault.target}".strip())
    world.trace("fault", fault.kind, str(fault))
    if fault.kind in STRIKES:
        world.armed.append([fault, fault.skip])
    else:
        _KINDS[fault.kind](world, fault)


def heal(world: World) -> None:
    """The faults are over: what has not struck never will, what lasts ends now."""
    world.armed.clear()
    now = world.loop.now
    store, ecs = world.store_world, world.ecs
    store.away_until, store.slow_until, world.sqs.away_until = (
        min(until, now) for until in (store.away_until, store.slow_until, world.sqs.away_until)
    )
    ecs.next_launches.clear()
    ecs.next_events.clear()
    ecs.throttled_until = ecs.blind_until = ecs.stale_until = now
    world.functions.repeat_next.clear()
    world.functions.drop_next.clear()
    world.functions.left_over = list(world.functions.running)
    for queue in world.sqs.queues.values():
        queue.duplicates = 0
    store.repeats = 0
    world.session_trouble.clear()
    world.deaf_until = now
    if world.trading is not None:
        world.trading.broker.heal()


def _some_worker(world: World) -> SimWorker | None:
    """Rather one that serves than one that waits."""
    living = [worker for worker in world.workers.values() if not worker.dead]
    serving = [worker for worker in living if worker.given is not None]
    return world.rng.choice(serving or living) if living else None


def _freeze(world: World, fault: Fault) -> None:
    if worker := _some_worker(world):
        worker.frozen_until = worker.acting_faults_until = world.loop.now + fault.amount


def _cut_off(world: World, fault: Fault) -> None:
    if worker := _some_worker(world):
        worker.cut_off_until = worker.acting_faults_until = world.loop.now + fault.amount


def _oom(world: World, fault: Fault) -> None:  # noqa: ARG001
    if worker := _some_worker(world):
        worker.kill()
        world.ecs.ended(worker.task, 137, "OutOfMemoryError")


def _oom_all(world: World, fault: Fault) -> None:  # noqa: ARG001
    for worker in [worker for worker in world.workers.values() if not worker.dead]:
        worker.kill()
        world.ecs.ended(worker.task, 137, "OutOfMemoryError")


def _session(trouble: str) -> Strike:
    def strike(world: World, fault: Fault) -> None:
        world.session_trouble.extend([trouble] * max(1, round(fault.amount)))

    return strike


def _host(silent: bool) -> Strike:
    def strike(world: World, fault: Fault) -> None:  # noqa: ARG001
        world.ecs.lose_host(world.rng.choice(sorted(world.ecs.hosts)), silent=silent)

    return strike


def _zone(world: World, fault: Fault) -> None:  # noqa: ARG001
    """All agents are disconnected, all workers dead, and ECS says RUNNING."""
    for host in sorted(world.ecs.hosts):
        world.ecs.lose_host(host, silent=True)


def _drain(world: World, fault: Fault) -> None:  # noqa: ARG001
    world.ecs.drain(world.rng.choice(sorted(world.ecs.hosts)))


def _until(part: str, name: str) -> Strike:
    def strike(world: World, fault: Fault) -> None:
        thing = getattr(world, part) if part else world
        setattr(thing, name, max(getattr(thing, name), world.loop.now + fault.amount))

    return strike


def _stale(world: World, fault: Fault) -> None:
    world.ecs.lag = fault.amount
    world.ecs.stale_until = world.loop.now + 4 * fault.amount


def _pool_target(world: World, fault: Fault) -> None:
    """An operator sets another target."""

    def set_target() -> None:
        try:
            warm_pool.set_target(world.deps(Priority.START), round(fault.amount))
        except TryLater:
            return  # the operator saw the error and lets it be

    world.loop.spawn(Actor("operator", "person"), set_target)


def _broker(then: Callable[[BrokerWorld, Fault], object]) -> Strike:
    """Where nobody trades, no broker can fail."""

    def strike(world: World, fault: Fault) -> None:
        if world.trading is not None:
            then(world.trading.broker, fault)

    return strike


def _revoked(broker: BrokerWorld, fault: Fault) -> None:
    broker.revoked_until[fault.target] = broker.world.loop.now + fault.amount


def _stream_lost(broker: BrokerWorld, fault: Fault) -> None:
    if fault.target in broker.accounts:
        broker.drop_stream(fault.target)


def _broker_until(name: str) -> Strike:
    return _broker(lambda broker, fault: setattr(broker, name, broker.world.loop.now + fault.amount))


_KINDS: dict[str, Strike] = {
    "broker_away": _broker_until("away_until"),
    "broker_slow": _broker_until("slow_until"),
    "vault_away": _broker_until("vault_away_until"),
    "stream_lost": _broker(_stream_lost),
    "updates": _broker(lambda broker, fault: broker.next_updates.append(fault.target)),
    "revoked": _broker(_revoked),
    "freeze": _freeze,
    "cut_off": _cut_off,
    "oom": _oom,
    "oom_all": _oom_all,
    "session_fails": _session("fails"),
    "session_refused": _session("refused"),
    "store_away": lambda world, fault: world.store_world.outage(fault.amount),
    "store_slow": lambda world, fault: world.store_world.slow(fault.amount),
    "store_wiped": lambda world, fault: world.store_world.wipe(),  # noqa: ARG005
    "failover": lambda world, fault: world.store_world.failover(fault.amount, float(fault.skip)),
    "control_deaf": _until("", "deaf_until"),
    "launch": lambda world, fault: world.ecs.next_launches.append((fault.target, fault.amount)),
    "event": lambda world, fault: world.ecs.next_events.append(fault.target),
    "throttled": _until("ecs", "throttled_until"),
    "blind": _until("ecs", "blind_until"),
    "stale": _stale,
    "host_lost": _host(silent=False),
    "host_silent": _host(silent=True),
    "zone_silent": _zone,
    "drain": _drain,
    "sqs_duplicate": lambda world, fault: world.duplicate_command(),  # noqa: ARG005
    "claim_duplicate": lambda world, fault: world.duplicate_claim(),  # noqa: ARG005
    "sqs_away": _until("sqs", "away_until"),
    "invoke_twice": lambda world, fault: world.functions.repeat_next.update({fault.target: 1}),
    "invoke_lost": lambda world, fault: world.functions.drop_next.update({fault.target: 1}),
    "pool_target": _pool_target,
}
