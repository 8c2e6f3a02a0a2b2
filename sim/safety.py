"""What must hold at every moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster import keys
from muster.blueprint import (
    BRAKE_MINIMUM,
    BRAKE_SHARE,
    EXIT_AFTER,
    MARK_BEAT,
    MARK_TTL,
    MARKLESS_PATIENCE,
    STOP_ACTING_AFTER,
)
from muster.budget import Priority
from muster.claims import Claim
from muster.model import Assignment, UserView, Want
from sim.audit import Invariant, user_of, view_of
from sim.ecs_world import SimTask
from sim.store_world import SOCKET_TIMEOUT_S
from sim.workers import DRIFT, FLIGHT_S

if TYPE_CHECKING:
    from sim.workers import SimWorker
    from sim.world import World

#: After a loss of acknowledged writes the old worker learns of it at its next beat, on a clock that may be
#: slow, by a call that may time out and be repeated once a second later.
OVERLAP_BEAT_S = MARK_BEAT.total_seconds() / (1 - DRIFT) + 2 * SOCKET_TIMEOUT_S + 1.0 + FLIGHT_S
#: If it cannot reach the store meanwhile, its lease ends it.
OVERLAP_LEASE_S = STOP_ACTING_AFTER.total_seconds() / (1 - DRIFT) + FLIGHT_S


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
        if now - began >= _overlap_bound(self.world, acting):
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
        if now - since >= _overlap_bound(self.world, [worker, newest]):
            self.violated(
                f"{user}: {worker.name} (epoch {given.epoch}) acted {now - since:.1f} s after "
                f"{newest.name} (epoch {epoch}) had begun"
            )


def _overlap_bound(world: World, workers: list[SimWorker]) -> float:
    """Nothing on a store that keeps what it acknowledged: there the first sight of it breaks the promise."""
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
        user, epoch = user_of(used[0]), int(reply[1])
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
            user = user_of(used[0])
            self._note(user, int(args[0]), "stop")
            self._stopped[user] = int(reply[1])
        elif name == "begin_start" and reply[0] in ("begin", "active", "starting"):
            user, cause = user_of(used[0]), args[0]
            if cause in ("repair", "move"):
                if self._last.get(user, (0, ""))[1] == "stop" and not self.world.store_world.lost:
                    self.violated(f"{user}: a {cause} started it after a stop")
            else:
                self._note(user, int(args[1]), "start")
        elif name == "take_mark" and reply[0] == "taken":
            user, epoch = user_of(used[0]), int(args[0])
            if epoch < self._stopped.get(user, 0) and not self.world.store_world.lost:
                self.violated(f"{args[1]} took {user} at {epoch}, stopped at {self._stopped[user]}")

    def _note(self, user: str, issued_at: int, action: str) -> None:
        before = self._last.get(user, (0, ""))
        if issued_at < before[0] and not self.world.store_world.lost:
            self.violated(f"{user}: {action} of {issued_at} was done after {before[1]} of {before[0]}")
        self._last[user] = max(before, (issued_at, action))


class FencedStops(Invariant):
    """A worker whose epoch has passed stops acting at its next beat, at the latest with its lease.

    Where a failover forgot the fence itself (a stop or a start that the replica never saw), the worker acts
    for the epoch that the store says is current: that is the command that was lost, not a fence unheard.
    """

    name = "a fenced worker stops in time"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._fenced: dict[str, list[tuple[int, float]]] = {}

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:  # noqa: ARG002
        if name in ("begin_start", "begin_stop") and reply[0] in ("begin", "stopping"):
            raised = self._fenced.setdefault(user_of(used[0]), [])
            if not raised or int(reply[1]) > raised[-1][0]:
                raised.append((int(reply[1]), self.world.loop.now))

    def landed(self, worker: SimWorker, given: Assignment) -> None:
        now, forgot = self.world.loop.now, self.world.store_world.forgot
        fences = (at for epoch, at in self._fenced.get(given.user, ()) if epoch > given.epoch)
        since = next((at for at in fences if not forgot(at)), now)
        if now - since > _trouble_bound(self.world, [worker]):
            self.violated(f"{worker.name} still acts for {given.user}, fenced {now - since:.1f} s ago")


class MarkHolder(Invariant):
    """Only its holder lets go of a mark."""

    name = "only its holder drops a mark"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._holder: dict[str, str] = {}

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:
        user = user_of(used[0])
        if (name == "take_mark" and reply[0] == "taken") or (name == "beat_mark" and reply[0] == "restored"):
            self._holder[user] = args[1]
        elif name == "drop_mark" and reply[0] == "dropped":
            holder = self._holder.get(user)
            if holder != args[1] and not self.world.store_world.lost:
                self.violated(f"{args[1]} dropped the mark of {holder} ({user})")


class ClaimsSettled(Invariant):
    """A claim leaves its channel only when somebody holds its epoch, or nobody may any more."""

    name = "a claim is settled before it is deleted"

    def deleted(self, body: str) -> None:
        claim = Claim.from_json(body)
        view = view_of(self.world, claim.user_id)
        held = self.world.store_world.backend.peek(keys.desired(claim.user_id)) or {}
        unserved = view.epoch == claim.epoch and held.get("held_epoch") != str(claim.epoch)
        if unserved and not self.world.store_world.lost:
            self.violated(f"the claim of {claim.claim_id} was deleted, and nobody serves it")


class NobodyLiveKilled(Invariant):
    """Maintenance never stops a worker that serves; when many marks have just vanished, it brakes."""

    name = "no live worker is killed"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._marked_until: dict[str, float] = {}

    def script(self, name: str, used: tuple[str, ...], args: tuple[Any, ...], reply: Any) -> None:  # noqa: ARG002
        if (name == "take_mark" and reply[0] == "taken") or (name == "beat_mark" and reply[0] != "fenced"):
            self._marked_until[user_of(used[0])] = self.world.loop.now + MARK_TTL.total_seconds()

    def stopping(self, task: SimTask, priority: Priority, reason: str) -> None:  # noqa: ARG002
        if priority is not Priority.REPAIR:
            return
        worker = task.worker
        if worker is not None and worker.given is not None and worker.may_act() and not worker.closed:
            view = view_of(self.world, worker.given.user)
            if view.want is Want.RUNNING and view.epoch == worker.given.epoch:
                self.violated(f"{worker.name} served {view.user} and was stopped")

    def swept(self, verdict: str) -> None:
        """Judged only where sweep and auditor must see the same: some time after the marks went."""
        world, now = self.world, self.world.loop.now
        if verdict == "brake" or now < max(world.ecs.stale_until, world.ecs.blind_until):
            return
        wanting = [v for user in world.users if (v := view_of(world, user)).want is Want.RUNNING]
        vanished = [view for view in wanting if self._vanished_lately(view)]
        if len(vanished) >= BRAKE_MINIMUM and len(vanished) > BRAKE_SHARE * len(wanting):
            self.violated(f"{len(vanished)} of {len(wanting)} marks had vanished and the sweep did not brake")

    def _vanished_lately(self, view: UserView) -> bool:
        """Its task runs, its mark is gone, and its worker may still be about to take it again."""
        task = self.world.ecs.tasks.get(view.task_id)
        if view.live_mark or view.lease or task is None or task.status != "RUNNING":
            return False
        since = self._marked_until.get(view.user, 0.0)
        since = min([since] + [until for _, until in self.world.store_world.lost if until < since])
        return 10.0 < self.world.loop.now - since < (EXIT_AFTER + MARKLESS_PATIENCE).total_seconds()
