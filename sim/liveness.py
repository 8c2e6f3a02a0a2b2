"""What must hold over time: nothing is lost, nothing is left over, nothing is done without a reason."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from muster import keys
from muster.blueprint import BOOT_PATIENCE, DRAIN_GRACE, FN_MAINTENANCE, MARK_TTL
from muster.budget import Priority
from muster.model import Want
from sim.audit import Invariant, first_gap, owned_tasks, owner_name, user_of, view_of
from sim.ecs_world import SimTask

if TYPE_CHECKING:
    from sim.people import Sent
    from sim.world import World

assert FN_MAINTENANCE.every is not None
SWEEP_S = FN_MAINTENANCE.every.total_seconds()
#: Listed by one sweep, suspected by the second, stopped by the third, then the drain; young tasks are spared.
ORPHAN_S = 3 * SWEEP_S + BOOT_PATIENCE.total_seconds() + DRAIN_GRACE.total_seconds() + 15.0

#: A mark of an older epoch makes a task look owned for longer than it is; and the auditor looks every 10 s.
_LOOKS_OWNED_S = MARK_TTL.total_seconds() + 15.0


class PoolSize(Invariant):
    """Idle and launching together never exceed the largest target there was."""

    name = "the pool never overshoots"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._target = 0
        self._claims: set[str] = set()

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:
        if name == "plan_pool":
            self._target = max(self._target, int(args[0]))
        elif name == "reserve_slot":
            self._judge_claims(used, args[0], reply)
            return
        elif name != "pool_beat":
            return
        now_ms = self.world.loop.now * 1000
        peek = self.world.store_world.backend.peek
        idle, launching = peek(used[0]) or {}, peek(used[2]) or {}
        living = sum(expires > now_ms for expires in (*idle.values(), *launching.values()))
        if living > self._target:
            self.violated(f"{len(idle)} idle and {len(launching)} launching, the target is {self._target}")

    def _judge_claims(self, used: tuple[str, ...], claim_id: str, reply: Any) -> None:
        """A claim is sent only where a worker is free for it; a repeat of one that was sent may be alone."""
        peek = self.world.store_world.backend.peek
        idle, outstanding = peek(used[0]) or {}, peek(used[1]) or {}
        if reply[0] == "reserved" and claim_id not in self._claims and len(outstanding) > len(idle):
            self.violated(f"{len(outstanding)} claims for {len(idle)} idle workers")
        self._claims.update(outstanding)


class Accounted(Invariant):
    """Every accepted command ends handled or dead-lettered, and the user is as the last one says."""

    name = "commands unaccounted = 0"

    def swallowed(self, command_id: str) -> None:
        self.violated(f"{command_id} was acknowledged by the queue and never delivered (deduplication)")

    def end(self) -> None:
        for key, sent in self.world.people.commands.items():
            if sent.state == "queued":
                self.violated(f"{key} is neither handled nor dead-lettered")
        for user in self.world.users:
            self._judge(user)

    def _judge(self, user: str) -> None:
        world = self.world
        mine = [s for s in world.people.commands.values() if s.command["user_id"] == user and not _repair(s)]
        if not mine or self._was_lost(mine):
            return
        done = [sent for sent in mine if sent.state == "done"]
        last = max(done, key=lambda sent: sent.issued_at, default=None)
        if last is None or any(sent.state == "dead" and sent.issued_at > last.issued_at for sent in mine):
            return  # a dead letter may have done its work before it died
        view = view_of(world, user)
        wanted = {Want.STOPPED} if last.command["action"] == "stop" else {Want.RUNNING, Want.FAILED}
        if view.want not in wanted:
            self.violated(f"{user} is {view.want}, its last command was {last.command['action']}")

    def _was_lost(self, mine: list[Sent]) -> bool:
        """Did a failover forget what was done for this user? WAIT counts such writes, it cannot keep them."""
        return any(
            began <= sent.issued_at + 300 and sent.issued_at <= until
            for began, until in self.world.store_world.lost
            for sent in mine
        )


class Whole(Invariant):
    """Given time, every user has what the store says, nothing else runs, and the pool is full."""

    name = "the system becomes whole again"

    def end(self) -> None:
        if gap := first_gap(self.world):
            self.violated(gap)


class NoOrphans(Invariant):
    """No task lives without an owner for longer than two whole sweeps after the faults are over."""

    name = "no task without an owner"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._since: dict[str, float] = {}

    def tick(self) -> None:
        world = self.world
        if world.healed_at is None:
            return
        now, owned = world.loop.now, owned_tasks(world)
        living = {task.arn: task for task in world.ecs.living()}
        for arn in list(self._since):
            if arn not in living or arn in owned:
                del self._since[arn]
        for arn, task in living.items():
            if arn not in owned and now - self._since.setdefault(arn, now) > ORPHAN_S:
                self.violated(
                    f"{arn} ({task.status}, {owner_name(task)}) has had no owner for {ORPHAN_S:.0f} s"
                )


class OrphansProven(Invariant):
    """What maintenance stops as an orphan had no owner at either of the two sweeps before, or has had none
    for so long that they must have seen it so."""

    name = "an orphan is proven by two sweeps"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._since: dict[str, float] = {}
        self._sweeps: list[float] = []
        self._alone: list[set[str]] = []  #: who had no owner at the last look before each of them

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:  # noqa: ARG002
        if name == "begin_sweep" and reply[0] == "begin":
            self._sweeps.append(self.world.loop.now)
            self._alone.append(set(self._since))

    def tick(self) -> None:
        world, now = self.world, self.world.loop.now
        pool = set((world.store_world.backend.peek(keys.pool_tasks(world.pool)) or {}).values())
        doubtful = [t.arn for t in world.ecs.living() if t.arn not in pool and not _serves(t)]
        owned = owned_tasks(world) if doubtful else set()
        self._since = {arn: self._since.get(arn, now) for arn in doubtful if arn not in owned}

    def stopping(self, task: SimTask, priority: Priority, reason: str) -> None:  # noqa: ARG002
        if not reason.startswith("no owner"):
            return
        if len(self._alone) > 2 and task.arn in self._alone[-2] & self._alone[-3]:
            return
        alone = self.world.loop.now - self._since.get(task.arn, self.world.loop.now)
        suspected = self.world.loop.now - self._sweeps[-2] if len(self._sweeps) > 1 else ORPHAN_S
        if alone < suspected - _LOOKS_OWNED_S:
            self.violated(f"{task.arn} ({owner_name(task)}) was stopped after {alone:.0f} s alone")


class Budget(Invariant):
    """Nobody but a person's start calls ECS without having drawn on the shared budget, and nobody draws what
    is kept for those who matter more."""

    name = "AWS calls stay inside the budget"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._drawn: Counter[tuple[str, str]] = Counter()
        self._buckets: dict[str, tuple[float, float]] = {}

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:
        if name != "take_budget" or reply[0] != "granted":
            return
        actor, bucket, now = self.world.loop.actor, user_of(used[0]), self.world.loop.now
        assert actor is not None
        calls, burst, rate, floor = (float(word) for word in args)
        kept = Priority.REFILL if actor.kind == "pool_manager" else Priority.REPAIR
        tokens, at = self._buckets.get(bucket, (burst, now))
        left = min(burst, tokens + (now - at) * rate) - calls
        self._buckets[bucket] = (left, now)
        self._drawn[actor.name, bucket] += int(calls)
        # A failover may forget draws; the server's milliseconds and rounding are worth a hundredth of a call.
        if floor < round(burst * kept.value) or (left < floor - 0.01 and not self.world.store_world.lost):
            self.violated(
                f"{actor.name} drew on {bucket}: {left:.2f} left, {burst * kept.value:.0f} are kept"
            )

    def launching(self, repairs: bool, priority: Priority) -> None:
        if repairs and priority is not Priority.REPAIR:
            self.violated("a repair is launched on what is a person's")

    def called(self, bucket: str, priority: Priority) -> None:
        actor = self.world.loop.actor
        if priority is Priority.START or actor is None:
            return
        self._drawn[actor.name, bucket] -= 1
        if self._drawn[actor.name, bucket] < 0:
            self.violated(f"{actor.name} called ECS without drawing on {bucket}")


def _serves(task: SimTask) -> bool:
    """Its worker has a user and a lease for it. One that sleeps through its lease serves nobody any more."""
    worker = task.worker
    return (
        worker is not None and not worker.dead and worker.given is not None and worker.lease.seconds_left > 0
    )


class Quiet(Invariant):
    """When nothing changes, nothing is done: no task, no command, no new epoch, no question per user."""

    name = "the system is quiet when nothing changes"

    def end(self) -> None:
        world, since = self.world, self.world.quiet_since
        assert since is not None
        calls = [name for when, name, _ in world.ecs.calls if when > since]
        acted = [name for name in calls if name in ("RunTask", "StopTask")]
        if acted:
            self.violated(f"{len(acted)} tasks were started or stopped in a quiet system")
        sweeps = 3
        failed = sum(view_of(world, user).want is Want.FAILED for user in world.users)
        if len(calls) > sweeps * (4 + failed):
            self.violated(f"{len(calls)} questions to ECS within two sweeps of a quiet system")
        new = [key for key, sent in world.people.commands.items() if sent.issued_at > since]
        if new:
            self.violated(f"a quiet system sent {new[0]}")


class NoSurprise(Invariant):
    """Handlers end with an answer or with `TryLater`; no other exception is part of the plan."""

    name = "no handler fails unexpectedly"

    def end(self) -> None:
        if self.world.handler_errors:
            self.violated(self.world.handler_errors[0])


def _repair(sent: Sent) -> bool:
    return "seen_epoch" in sent.command
