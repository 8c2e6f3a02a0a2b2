"""What auditors see: the store without a command, the tasks as they truly are. No effect, no time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redis.exceptions import NoScriptError

from muster import keys, steps
from muster import store as core_store
from muster.model import UserView, Want
from sim.ecs_world import SimTask

if TYPE_CHECKING:
    from sim.world import World

HOOKS = (
    *(
        "script",
        "began",
        "watch",
        "landed",
        "deleted",
        "launching",
        "stopping",
        "swallowed",
        "swept",
        "tick",
        "end",
    ),
    *("called", "connected", "sending", "placed"),
)


class Invariant:
    """Base of all. `name` is what the report says.

    Hooks, all optional: `script` after each atomic step, `began` when a worker has the mark, `watch` whenever
    a user's actors may have changed, `landed` when a side effect reaches the broker, `deleted` when a claim
    leaves its queue, `launching` at every RunTask, `stopping` at every StopTask, `called` at every call of
    ECS, `swallowed` when a queue deduplicates a person's command, `swept` when a batch of a sweep says
    whether it braked, `tick` every ten seconds, `end` when the system has had its time to settle. Where
    people trade: `connected` when a session is open at the broker, `sending` when a worker sends an order or
    a cancel, `placed` when an order has arrived there.
    """

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world

    def violated(self, what: str) -> None:
        self.world.violate(self.name, what)


def user_of(key: str) -> str:
    return key[key.index("{") + 1 : key.index("}")]


def owner_name(task: SimTask) -> str:
    return task.environ.get("MUSTER_USER") or "pool"


def view_of(world: World, user: str) -> UserView:
    """A user as an auditor reads it: no effect, no time."""
    step = steps.read_user(user)
    assert step.script is not None
    source, sha = core_store._source(step.script)
    backend, words = world.store_world.backend, ("EVALSHA", sha, len(step.keys), *step.keys, *step.args)
    try:
        return step.parse(backend.execute(words))
    except NoScriptError:
        backend.script_load(source)
        return step.parse(backend.execute(words))


def _indexed(world: World, user: str) -> bool:
    return user in (world.store_world.backend.peek(keys.index(keys.bucket_of(user))) or ())


def owned_tasks(world: World) -> set[str]:
    """Every task that somebody answers for."""
    owned: set[str] = set()
    for user in world.users:
        view = view_of(world, user)
        if view.mark is not None:
            owned.add(view.mark.task_id)
        if view.want is Want.RUNNING:
            owned.add(view.task_id)
            owned |= {view.lease.task_id} if view.lease else set()
            owned |= {
                task.arn
                for task in world.ecs.living()
                if task.environ.get("MUSTER_USER") == user and task.environ["MUSTER_EPOCH"] == str(view.epoch)
            }
    owned |= set((world.store_world.backend.peek(keys.pool_tasks(world.pool)) or {}).values())
    return owned


def first_gap(world: World) -> str:
    """The first thing that is not as it should be for good, or nothing."""
    if world.sqs.queues["worker-control.fifo"].messages:
        return "commands are waiting"
    if any(actor in world.functions.running for actor in world.functions.left_over):
        return "an invocation from the time of the faults is still under way"
    if any(w.acting_faults_until > world.loop.now for w in world.workers.values() if not w.dead):
        return "a worker is still frozen or cut off"
    if "DRAINING" in world.ecs.hosts.values():
        return "a draining host is still to be switched off"
    for user in world.users:
        view = view_of(world, user)
        serving = [worker for worker in world.serving[user] if not worker.dead]
        if world.store_world.lost and not serving and not _indexed(world, user):
            continue  # the store forgot it, and nobody was left alive to say otherwise
        if view.want is Want.RUNNING:
            if not serving:
                return f"{user} wants a worker and has none ({view.reason or 'no reason'})"
            if view.live_mark is None or view.live_mark.ready_at_ms is None:
                return f"{user} has a worker that is not ready"
            if len(serving) > 1:
                return f"{user} has {len(serving)} workers"
        elif serving:
            return f"{user} is {view.want} and has a worker"
    owned = owned_tasks(world)
    for task in world.ecs.living():
        if task.worker is not None and task.worker.dead:
            return f"{task.arn} is dead and ECS does not know it yet"
        if task.arn not in owned:
            return f"{task.arn} ({task.status}, {owner_name(task)}) has no owner"
    target = int((world.store_world.backend.peek(keys.pool_config(world.pool)) or {}).get("wanted", -1))
    target = target if target >= 0 else world.plan.pool_target
    idle, launching = (
        sum(
            expires > world.loop.now * 1000
            for expires in (world.store_world.backend.peek(key) or {}).values()
        )
        for key in (keys.pool_idle(world.pool), keys.pool_launching(world.pool))
    )
    if launching:
        return f"{launching} pool workers are on their way"
    if idle != target:
        return f"the pool has {idle} of {target} workers"
    return world.trading.gap() if world.trading is not None else ""
