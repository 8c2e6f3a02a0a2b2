"""What must hold, whatever happens. Each invariant is a small class in the list at the end; a later part adds
its own by appending to `INVARIANTS`.

Hooks, all optional: `script` after each atomic step of a watched kind, `began` when a worker has the mark,
`watch` whenever a user's actors may have changed, `landed` when a side effect reaches the broker, `deleted` when
a claim leaves its queue, `stopping` at every StopTask, `swallowed` when a queue deduplicates a person's command,
`tick` every ten seconds, `end` when the system has had its time to settle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

from muster import keys, steps
from muster import store as core_store
from muster.blueprint import (
    BRAKE_MINIMUM,
    BRAKE_SHARE,
    DRAIN_GRACE,
    EXIT_AFTER,
    FN_MAINTENANCE,
    MARK_BEAT,
    MARK_TTL,
    MARKLESS_PATIENCE,
    STOP_ACTING_AFTER,
)
from muster.budget import Priority
from muster.claims import Claim
from muster.model import Assignment, UserView, Want
from sim.ecs_world import SIM_MUTATE, SIM_READ, SimTask
from sim.plan import START
from sim.store_world import SOCKET_TIMEOUT_S
from sim.workers import DRIFT, FLIGHT_S

if TYPE_CHECKING:
    from sim.workers import SimWorker
    from sim.world import Sent, World

assert FN_MAINTENANCE.every is not None
SWEEP_S = FN_MAINTENANCE.every.total_seconds()
#: After a loss of acknowledged writes the old worker learns of it at its next beat, on a clock that may be
#: slow, by a call that may time out and be repeated once a second later.
OVERLAP_BEAT_S = MARK_BEAT.total_seconds() / (1 - DRIFT) + 2 * SOCKET_TIMEOUT_S + 1.0 + FLIGHT_S
#: If it cannot reach the store meanwhile, its lease ends it.
OVERLAP_LEASE_S = STOP_ACTING_AFTER.total_seconds() / (1 - DRIFT) + FLIGHT_S
#: Listed by one sweep, suspected by the second, stopped by the third, then the drain; young tasks are spared.
ORPHAN_S = 3 * SWEEP_S + MARKLESS_PATIENCE.total_seconds() + DRAIN_GRACE.total_seconds() + 15.0


HOOKS = ("script", "began", "watch", "landed", "deleted", "stopping", "swallowed", "tick", "end")


class Invariant:
    """Base of all. `name` is what the report says."""

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world

    def violated(self, what: str) -> None:
        self.world.violate(self.name, what)


class OneActor(Invariant):
    """At most one worker may act for a user; after lost writes, for no longer than the stated bound."""

    name = "at most one worker may act"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._since: dict[str, float] = {}

    def watch(self, user: str) -> None:
        acting = [worker for worker in self.world.serving[user] if worker.may_act() and not worker.closed]
        now = self.world.loop.now
        if len(acting) < 2:
            self._since.pop(user, None)
            return
        began = self._since.setdefault(user, now)
        self.world.worst_overlap = max(self.world.worst_overlap, now - began)
        if now - began > _overlap_bound(self.world, acting):
            names = ", ".join(worker.name for worker in acting)
            self.violated(f"{user}: {names} may act together since {now - began:.1f} s")


class BrokerOrder(Invariant):
    """Side effects of an older epoch never come after those of a newer one: no effect under a lost lease."""

    name = "no side effect under a lost lease"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        #: user -> ((epoch, when it took the mark), the worker, when its first side effect landed)
        self._newest: dict[str, tuple[tuple[int, float], SimWorker, float]] = {}

    def landed(self, worker: SimWorker, given: Assignment) -> None:
        now, user = self.world.loop.now, given.user
        rank = (given.epoch, worker.began_at)
        if user not in self._newest or rank > self._newest[user][0]:
            self._newest[user] = (rank, worker, now)
            return
        (epoch, _), newest, since = self._newest[user]
        if newest is worker:
            return
        self.world.worst_overlap = max(self.world.worst_overlap, now - since)
        if now - since > _overlap_bound(self.world, [worker, newest]):
            self.violated(
                f"{user}: {worker.name} (epoch {given.epoch}) acted {now - since:.1f} s after "
                f"{newest.name} (epoch {epoch}) had begun"
            )


def _overlap_bound(world: World, workers: list[SimWorker]) -> float:
    """Nothing on a store that keeps what it acknowledged."""
    return _trouble_bound(world, workers) if world.store_world.lost else 0.0


def _trouble_bound(world: World, workers: list[SimWorker]) -> float:
    """One beat, where beats get through; else the lease."""
    now = world.loop.now
    trouble = [worker.acting_faults_until for worker in workers]
    trouble += [world.store_world.away_until, world.store_world.slow_until]
    return OVERLAP_LEASE_S if max(trouble) + OVERLAP_LEASE_S > now else OVERLAP_BEAT_S


class EpochsRise(Invariant):
    """A new epoch is above every epoch the user ever had, also over lost writes."""

    name = "epochs only rise"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._issued: dict[str, dict[int, str]] = {}

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:
        if name not in ("begin_start", "begin_stop") or reply[0] not in ("begin", "stopping"):
            return
        user, epoch = _user_of(used[0]), int(reply[1])
        command = str(args[2] if name == "begin_start" else args[1])
        issued = self._issued.setdefault(user, {})
        if epoch in issued:
            if issued[epoch] != command:
                self.violated(f"{user}: epoch {epoch} was given to {issued[epoch]} and to {command}")
        elif issued and epoch <= max(issued):
            self.violated(f"{user}: epoch {epoch} after {max(issued)}")
        issued[epoch] = command


class OneWorkerPerEpoch(Invariant):
    """One epoch serves one worker, ever; one worker serves one user, ever."""

    name = "one worker serves one user, under its own epoch"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._users: dict[str, str] = {}
        self._epochs: dict[tuple[str, int], str] = {}

    def began(self, worker: SimWorker, given: Assignment) -> None:
        if self._users.setdefault(worker.name, given.user) != given.user:
            self.violated(f"{worker.name} served {self._users[worker.name]} and {given.user}")
        holder = self._epochs.setdefault((given.user, given.epoch), worker.name)
        if holder != worker.name and not self.world.store_world.lost:
            self.violated(f"{given.user}: epoch {given.epoch} served {holder} and {worker.name}")


class StopsHold(Invariant):
    """After a stop nothing starts without a newer command, and no older command undoes a newer one."""

    name = "no stop is undone"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._last: dict[str, tuple[int, str]] = {}
        self._stopped: dict[str, int] = {}

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:
        if name == "begin_stop" and reply[0] == "stopping":
            user = _user_of(used[0])
            self._note(user, int(args[0]), "stop")
            self._stopped[user] = int(reply[1])
        elif name == "begin_start" and reply[0] in ("begin", "active", "starting"):
            user, cause = _user_of(used[0]), args[0]
            if cause in ("repair", "move"):
                if self._last.get(user, (0, ""))[1] == "stop" and not self.world.store_world.lost:
                    self.violated(f"{user}: a {cause} started it after a stop")
            else:
                self._note(user, int(args[1]), "start")
        elif name == "take_mark" and reply[0] == "taken":
            user, epoch = _user_of(used[0]), int(args[0])
            if epoch < self._stopped.get(user, 0) and not self.world.store_world.lost:
                self.violated(f"{args[1]} took {user} at {epoch}, stopped at {self._stopped[user]}")

    def _note(self, user: str, issued_at: int, action: str) -> None:
        before = self._last.get(user, (0, ""))
        if issued_at < before[0] and not self.world.store_world.lost:
            self.violated(f"{user}: {action} of {issued_at} was done after {before[1]} of {before[0]}")
        self._last[user] = max(before, (issued_at, action))


class FencedStops(Invariant):
    """A worker whose epoch has passed stops acting at its next beat, or at the latest when its lease is over."""

    name = "a fenced worker stops in time"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._fenced: dict[str, list[tuple[int, float]]] = {}

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:  # noqa: ARG002
        if name in ("begin_start", "begin_stop") and reply[0] in ("begin", "stopping"):
            raised = self._fenced.setdefault(_user_of(used[0]), [])
            if not raised or int(reply[1]) > raised[-1][0]:
                raised.append((int(reply[1]), self.world.loop.now))

    def landed(self, worker: SimWorker, given: Assignment) -> None:
        now = self.world.loop.now
        since = next((at for epoch, at in self._fenced.get(given.user, ()) if epoch > given.epoch), now)
        if now - since > _trouble_bound(self.world, [worker]):
            self.violated(f"{worker.name} still acts for {given.user}, fenced {now - since:.1f} s ago")


class MarkHolder(Invariant):
    """Only its holder lets go of a mark."""

    name = "only its holder drops a mark"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._holder: dict[str, str] = {}

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:
        user = _user_of(used[0])
        if (name == "take_mark" and reply[0] == "taken") or (name == "beat_mark" and reply[0] == "restored"):
            self._holder[user] = args[1]
        elif name == "drop_mark" and reply[0] == "dropped" and self._holder.get(user) != args[1]:
            if not self.world.store_world.lost:
                self.violated(f"{args[1]} dropped the mark of {self._holder.get(user)} ({user})")


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


class ClaimsSettled(Invariant):
    """A claim leaves its channel only when somebody holds its epoch, or nobody may any more."""

    name = "a claim is settled before it is deleted"

    def deleted(self, body: str) -> None:
        claim = Claim.from_json(body)
        view = view_of(self.world, claim.user_id)
        held = self.world.store_world.backend.peek(keys.desired(claim.user_id)) or {}
        if view.epoch == claim.epoch and held.get("held_epoch") != str(claim.epoch):
            if not self.world.store_world.lost:
                self.violated(f"the claim of {claim.claim_id} was deleted, and nobody serves it")


class NobodyLiveKilled(Invariant):
    """Maintenance never stops a worker that serves its user, and nothing while many marks have just vanished."""

    name = "no live worker is killed"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._marked_until: dict[str, float] = {}

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:  # noqa: ARG002
        if (name == "take_mark" and reply[0] == "taken") or (name == "beat_mark" and reply[0] != "fenced"):
            self._marked_until[_user_of(used[0])] = self.world.loop.now + MARK_TTL.total_seconds()

    def stopping(self, task: SimTask, priority: Priority) -> None:
        if priority is not Priority.REPAIR:
            return
        views = {user: view_of(self.world, user) for user in self.world.users}
        worker = task.worker
        if worker is not None and worker.given is not None and worker.may_act() and not worker.closed:
            view = views[worker.given.user]
            if view.want is Want.RUNNING and view.epoch == worker.given.epoch:
                self.violated(f"{worker.name} served {view.user} and was stopped")
        wanting = [view for view in views.values() if view.want is Want.RUNNING]
        vanished = [view for view in wanting if self._vanished_lately(view)]
        if len(vanished) >= BRAKE_MINIMUM and len(vanished) > BRAKE_SHARE * len(wanting):
            self.violated(f"{task.arn} was stopped when {len(vanished)} of {len(wanting)} marks had vanished")

    def _vanished_lately(self, view: UserView) -> bool:
        """Its task runs, its mark is gone, and its worker may still be about to take it again."""
        task = self.world.ecs.tasks.get(view.task_id)
        if view.live_mark or view.lease or task is None or task.status != "RUNNING":
            return False
        since = self._marked_until.get(view.user, 0.0)
        since = min([since] + [until for _, until in self.world.store_world.lost if until < since])
        return self.world.loop.now - since < (EXIT_AFTER + MARKLESS_PATIENCE).total_seconds()


class Accounted(Invariant):
    """Every accepted command ends handled or in the dead-letter queue, and the user is as the last one says."""

    name = "commands unaccounted = 0"

    def swallowed(self, command_id: str) -> None:
        self.violated(f"{command_id} was acknowledged by the queue and never delivered (deduplication)")

    def end(self) -> None:
        for key, sent in self.world.commands.items():
            if sent.state == "queued":
                self.violated(f"{key} is neither handled nor dead-lettered")
        for user in self.world.users:
            self._judge(user)

    def _judge(self, user: str) -> None:
        world = self.world
        mine = [s for s in world.commands.values() if s.command["user_id"] == user and not _repair(s)]
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
                self.violated(f"{arn} ({task.status}, {_owner(task)}) has had no owner for {ORPHAN_S:.0f} s")


class Budget(Invariant):
    """What is not a person's start stays within the shared call budget."""

    name = "AWS calls stay inside the budget"

    def end(self) -> None:
        for spec, names in (
            (SIM_MUTATE, ("RunTask", "StopTask")),
            (SIM_READ, ("DescribeTasks", "ListTasks")),
        ):
            tokens, at = float(spec.burst), START
            for when, name, priority in self.world.ecs.calls:
                if name in names and priority is not Priority.START:
                    tokens = min(spec.burst, tokens + (when - at) * spec.per_second) - 1
                    at = when
                    # Time between asking the budget and calling, and a budget that a failover forgot.
                    if tokens < -3 and not self.world.store_world.lost:
                        self.violated(f"{name} at {when - START:.1f} s overdraws the {spec.name} bucket")


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
        new = [key for key, sent in world.commands.items() if sent.issued_at > since]
        if new:
            self.violated(f"a quiet system sent {new[0]}")


class NoSurprise(Invariant):
    """Handlers end with an answer or with `TryLater`; no other exception is part of the plan."""

    name = "no handler fails unexpectedly"

    def end(self) -> None:
        if self.world.handler_errors:
            self.violated(self.world.handler_errors[0])


def _user_of(key: str) -> str:
    return key[key.index("{") + 1 : key.index("}")]


def _repair(sent: Sent) -> bool:
    return "seen_epoch" in sent.command


def _owner(task: SimTask) -> str:
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
            return f"{task.arn} ({task.status}, {_owner(task)}) has no owner"
    target = int((world.store_world.backend.peek(keys.pool_config(world.pool)) or {}).get("wanted", -1))
    target = target if target >= 0 else world.plan.pool_target
    idle = len(world.store_world.backend.peek(keys.pool_idle(world.pool)) or {})
    if idle != target:
        return f"the pool has {idle} of {target} workers"
    return ""


INVARIANTS: list[type[Invariant]] = [
    OneActor,
    BrokerOrder,
    EpochsRise,
    OneWorkerPerEpoch,
    StopsHold,
    FencedStops,
    MarkHolder,
    PoolSize,
    ClaimsSettled,
    NobodyLiveKilled,
    Accounted,
    Whole,
    NoOrphans,
    Budget,
    Quiet,
    NoSurprise,
]
