"""Any history of one user's scripts, against a model of about ten lines per script.

Time is told by the machine: a lease ends because a rule ends it. Lost writes are a return of store and model
to an earlier moment; what the model then says is what `muster/lua` promises about a store that forgot.
"""

from __future__ import annotations

import time
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from muster import blueprint, keys, steps
from muster.model import Assignment, Cause, Via
from muster.steps import Begin, Settled
from muster.store import Store
from tests.simulation.machines import client_of, of, run

SCRIPTS = of(
    "muster/lua",
    "abort_start",
    "beat_mark",
    "begin_start",
    "begin_stop",
    "bind_start",
    "drop_mark",
    "forget_user",
    "note_missing",
    "read_user",
    "take_mark",
    "task_stopped",
)
USER = "u1"
HEALTHY_MS = steps.ms(blueprint.HEALTHY_AFTER)

#: A command is mostly newer than the last one, sometimes as old (a repeat), sometimes older (redriven).
ages = st.sampled_from([1, 0, -1])
commands = st.sampled_from(["c1", "c2"])
#: What a worker says of itself, as `Context.state_json` writes it.
states = st.sampled_from(['{"phase":"ready"}', '{"phase":"connecting","reason":"the broker is away"}'])
#: Which worker: the newest, or one of the three before it.
recent = st.integers(0, 3)
#: Whether maintenance decided on what it saw before the last change.
behind = st.booleans()


@dataclass
class Mark:
    worker: str
    epoch: int
    task: str
    ready: bool = False
    healthy: bool = False


@dataclass
class Lease:
    epoch: int
    command: str
    attempt: int = 0
    task: str = ""


@dataclass(frozen=True)
class Worker:
    """A process that was told to serve USER under `given`; `task` is what its launcher calls it."""

    id: str
    given: Assignment

    @property
    def task(self) -> str:
        return f"task-{self.id}"


@dataclass
class Model:
    """What the store should hold. A method is a script; `raised` until the store has told the new epoch."""

    epoch: int = 0
    want: str = ""
    issued: int = 0
    command: str = ""
    failures: int = 0
    task: str = ""
    missing: bool = False
    held: tuple[int, str] = (0, "")
    mark: Mark | None = None
    lease: Lease | None = None
    raised: bool = field(default=False, compare=False)

    def begin_start(self, cause: Cause, at: int, command: str, seen: int) -> tuple[Any, ...]:
        upkeep = cause in (Cause.REPAIR, Cause.MOVE)
        if (not upkeep and at < self.issued) or (upkeep and self.want != "running"):
            return "superseded", self.want
        starting = self.lease if self.lease and self.lease.epoch == self.epoch else None
        if starting and starting.command == command:
            return "begin", starting.attempt
        if upkeep and seen != self.epoch:
            return "moved", str(self.epoch)
        settled = cause in (Cause.START, Cause.REPAIR) or self.command == command
        live = self.mark is not None and self.mark.epoch == self.epoch
        if cause is Cause.REPAIR and not live and not starting:
            self.failures += 1
            if self.failures > blueprint.GIVE_UP_AFTER:
                self.failures -= 1
                self.raised, self.want, self.lease = True, "failed", None
                return "failed", str(self.failures)
        if not upkeep:
            self.want, self.issued, self.command, self.failures, self.missing = (
                "running",
                at,
                command,
                0,
                False,
            )
        if settled and (live or starting):
            return "active" if live else "starting", str(self.epoch)
        self.raised, self.task, self.missing, self.lease = True, "", False, Lease(0, command)
        return "begin", 0

    def begin_stop(self, at: int, command: str) -> tuple[Any, ...]:
        if at < self.issued:
            return "superseded", self.want
        if (self.want, self.command) != ("stopped", command):
            self.raised, self.failures, self.missing = True, 0, False
            self.want, self.issued, self.command = "stopped", at, command
        tasks = [self.mark.task if self.mark else "", self.lease.task if self.lease else "", self.task]
        self.lease = None
        return ("stopping", *dict.fromkeys(task for task in tasks if task))

    def bind_start(self, epoch: int, task: str) -> tuple[str, ...]:
        if self.epoch > epoch:
            return "stale", str(self.epoch)
        if self.mark and self.mark.epoch == epoch:
            return ("taken",)
        self.task = task
        self.lease = self.lease or Lease(epoch, "")
        self.lease.epoch, self.lease.task = epoch, task
        return ("bound",)

    def abort_start(self, epoch: int, again: bool) -> tuple[str, ...]:
        if self.epoch != epoch:
            return "stale", str(self.epoch)
        if again and self.lease:
            self.lease.attempt += 1
            return "again", str(self.lease.attempt)
        self.lease = None
        return ("given_back",)

    def take_mark(self, worker: Worker) -> tuple[str, ...]:
        epoch = worker.given.epoch
        if self.epoch > epoch:
            return "stale", str(self.epoch)
        if self.held[0] == epoch and self.held[1] != worker.id:
            return "duplicate", self.held[1]
        if self.mark and self.mark.worker != worker.id:
            return "duplicate" if self.mark.epoch >= epoch else "held", self.mark.worker
        self._assert(worker)
        self.lease = None
        return ("taken",)

    def beat_mark(self, worker: Worker, ready: bool) -> tuple[str, ...]:
        epoch, answer = worker.given.epoch, "kept"
        if self.epoch > epoch:
            return "fenced", str(self.epoch)
        if self.mark and self.mark.worker != worker.id and self.mark.epoch >= epoch:
            return "lost", self.mark.worker
        if self.held[0] == epoch and self.held[1] != worker.id:
            return "lost", self.held[1]
        if not self.mark or self.mark.worker != worker.id or self.epoch < epoch or not self.want:
            self._assert(worker)
            answer = "restored"
        self.lease = None
        assert self.mark
        if ready and self.mark.ready and self.mark.healthy:
            self.failures = 0
        self.mark.ready |= ready
        return (answer,)

    def _assert(self, worker: Worker) -> None:
        given = worker.given
        if not self.want or (self.epoch < given.epoch and self.issued <= given.issued_at_ms):
            self.want, self.issued, self.command = "running", given.issued_at_ms, given.command_id
        self.epoch, self.held, self.task = max(self.epoch, given.epoch), (given.epoch, worker.id), worker.task
        self.missing, self.mark = False, Mark(worker.id, given.epoch, worker.task)

    def drop_mark(self, worker: Worker, final: bool) -> tuple[str, ...]:
        if not self.mark or (self.mark.worker, self.mark.epoch) != (worker.id, worker.given.epoch):
            return ("not_holder",)
        if final and self.mark.epoch == self.epoch:
            self.raised, self.want = True, "failed"
        self.mark = None
        return ("dropped",)

    def task_stopped(self, task: str) -> tuple[str, ...]:
        cleared = False
        if self.mark and self.mark.task == task:
            cleared, self.mark = self.mark.epoch == self.epoch, None
        if self.lease and self.lease.task == task:
            cleared, self.lease = True, None
        if self.task == task:
            cleared, self.task, self.missing = True, "", False
        return "cleared" if cleared else "not_mine", str(self.epoch)

    def note_missing(self, epoch: int) -> str:
        if self.epoch != epoch or self.mark:
            return "moved"
        self.missing = True
        return "noted"

    def forget_user(self, epoch: int) -> str:
        if self.epoch != epoch or self.want == "running":
            return "moved"
        self.task, self.missing = "", False
        return "forgotten"


class UserMachine(RuleBasedStateMachine):
    def __init__(self, store: Store) -> None:
        super().__init__()
        self.store = store
        self.store.client.flushall()
        self.model = Model()
        self.past: list[tuple[Model, dict[str, Any]]] = [(Model(), {})]  # after every step
        self.epochs: set[int] = set()  # every epoch a start was ever given
        self.workers: list[Worker] = []
        self.dead: set[str] = set()
        self.seated: set[str] = set()  # workers that have held the mark: only they beat
        self.acting: set[str] = set()  # workers whose last word from the store was that they may act
        self.shaken: set[str] = set()  # of these, the ones that have not asked since the store lost writes

    def adopt(self) -> int:
        """The epoch the store raised: higher than the last, and at least its own time."""
        told = int(self.store.client.get(keys.epoch(USER)))
        assert told > self.model.epoch
        assert told >= self.server_ms() - 5_000
        self.model.epoch, self.model.raised = told, False
        if self.model.lease:
            self.model.lease.epoch = told
        return told

    def server_ms(self) -> int:
        seconds, micros = self.store.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def launched(self, given: Assignment) -> None:
        self.workers.append(Worker(f"w{len(self.workers)}", given))

    def pick(self, back: int) -> Worker:
        return self.workers[-1 - back % len(self.workers)]

    def pick_seated(self, back: int) -> Worker:
        seated = [worker for worker in self.workers if worker.id in self.seated]
        return seated[-1 - back % len(seated)]

    @initialize(so_far=st.sampled_from(["asked for", "seated", "ready"]))
    def somebody_starts(self, so_far: str) -> None:
        """Most of a life is that of a ready worker: a third of the histories begin there."""
        self.begin_start(Cause.START, 1, "c1", False)
        if so_far != "asked for":
            self.take_mark(0)
        if so_far == "ready":
            self.beat_mark(0, True, '{"phase":"ready"}')

    @rule(cause=st.sampled_from(Cause), age=ages, command=commands, behind=behind)
    def begin_start(self, cause: Cause, age: int, command: str, behind: bool) -> None:
        at, seen = self.model.issued + age, self.model.epoch - behind
        answer = self.store.one(steps.begin_start(USER, cause, at, command, "ref", seen))
        expected = self.model.begin_start(cause, at, command, seen)
        fresh = self.model.raised and self.adopt()
        if isinstance(answer, Settled):
            assert (answer.tag, answer.detail) == expected
            return
        assert isinstance(answer, Begin)
        assert ("begin", answer.attempt) == expected
        assert answer.epoch == self.model.epoch
        assert not (fresh and fresh in self.epochs), "one epoch was given to two starts"
        self.epochs.add(answer.epoch)
        assert (answer.issued_at_ms, answer.command_id) == (self.model.issued, self.model.command)
        issued, told = answer.issued_at_ms, answer.command_id
        self.launched(Assignment(USER, answer.epoch, Via.COLD, cause, issued, told, answer.credentials_ref))

    @rule(age=ages, command=commands)
    def begin_stop(self, age: int, command: str) -> None:
        at = self.model.issued + age
        tag, *rest = self.store.one(steps.begin_stop(USER, at, command))
        expected = self.model.begin_stop(at, command)
        if self.model.raised:
            self.adopt()
        assert (tag, *(rest[1:] if tag == "stopping" else rest)) == expected

    @precondition(lambda self: self.workers)
    @rule(back=recent)
    def a_claim_comes_twice(self, back: int) -> None:
        self.launched(self.pick(back).given)

    @precondition(lambda self: self.workers)
    @rule(back=recent)
    def bind_start(self, back: int) -> None:
        worker = self.pick(back)
        answer = self.store.one(steps.bind_start(USER, worker.given.epoch, worker.task))
        assert answer == self.model.bind_start(worker.given.epoch, worker.task)

    @precondition(lambda self: self.workers)
    @rule(back=recent, again=st.booleans())
    def abort_start(self, back: int, again: bool) -> None:
        epoch = self.pick(back).given.epoch
        answer = self.store.one(steps.abort_start(USER, epoch, "no capacity", again=again))
        assert answer == self.model.abort_start(epoch, again)

    @precondition(lambda self: self.workers)
    @rule(back=recent)
    def take_mark(self, back: int) -> None:
        worker = self.pick(back)
        if worker.id in self.dead:
            return
        answer = self.store.one(steps.take_mark(worker.given, worker.id, worker.task, "v1"))
        assert answer == self.model.take_mark(worker)
        if answer[0] == "taken":
            self.seated.add(worker.id)
        self.heard(worker, answer[0] == "taken")

    @precondition(lambda self: self.seated)
    @rule(back=recent, ready=st.booleans(), state=states)
    def beat_mark(self, back: int, ready: bool, state: str) -> None:
        worker = self.pick_seated(back)
        step = steps.beat_mark(worker.given, worker.id, worker.task, "v1", state, ready=ready)
        answer = self.store.one(step)
        assert answer == self.model.beat_mark(worker, ready)
        self.heard(worker, answer[0] in ("kept", "restored"))

    def heard(self, worker: Worker, may_act: bool) -> None:
        self.shaken.discard(worker.id)
        (self.acting.add if may_act else self.acting.discard)(worker.id)

    @precondition(lambda self: self.seated)
    @rule(back=recent, final=st.booleans())
    def drop_mark(self, back: int, final: bool) -> None:
        worker = self.pick_seated(back)
        answer = self.store.one(steps.drop_mark(USER, worker.given.epoch, worker.id, "bye", final=final))
        assert answer == self.model.drop_mark(worker, final)
        if self.model.raised:
            self.adopt()
        self.gone(worker)

    @precondition(lambda self: self.workers)
    @rule(back=recent)
    def task_stopped(self, back: int) -> None:
        """Its event, also twice or long after."""
        worker = self.pick(back)
        self.gone(worker)
        answer = self.store.one(steps.task_stopped(USER, worker.task, "exit 1"))
        assert answer == self.model.task_stopped(worker.task)

    def gone(self, worker: Worker) -> None:
        self.dead.add(worker.id)
        for group in (self.seated, self.acting, self.shaken):
            group.discard(worker.id)

    @rule(behind=behind)
    def sweep(self, behind: bool) -> None:
        epoch = self.model.epoch - behind
        assert self.store.one(steps.note_missing(USER, epoch))[0] == self.model.note_missing(epoch)
        assert self.store.one(steps.forget_user(USER, epoch))[0] == self.model.forget_user(epoch)

    @precondition(lambda self: self.model.mark)
    @rule()
    def mark_runs_out(self) -> None:
        assert self.model.mark
        self.store.client.delete(keys.active(USER))
        # Its worker stopped acting 5 s before; it may still ask for its mark again.
        self.acting.discard(self.model.mark.worker)
        self.model.mark = None

    @precondition(lambda self: self.model.lease)
    @rule()
    def lease_runs_out(self) -> None:
        self.store.client.delete(keys.starting(USER))
        self.model.lease = None

    @precondition(lambda self: self.model.mark and self.model.mark.ready)
    @rule()
    def a_ready_worker_proves_itself(self) -> None:
        assert self.model.mark
        self.store.client.hset(keys.active(USER), "ready_at", self.server_ms() - HEALTHY_MS)
        self.model.mark.healthy = True

    @precondition(lambda self: self.model.want == "running")
    @rule(left=st.integers(0, 1))
    def it_failed_often_before(self, left: int) -> None:
        self.model.failures = blueprint.GIVE_UP_AFTER - left
        self.store.client.hset(keys.desired(USER), "failures", self.model.failures)

    @rule(steps_ago=st.integers(1, 6))
    def lose_writes(self, steps_ago: int) -> None:
        """A failover to a replica that lags: the last steps have never been."""
        model, kept = self.past[max(0, len(self.past) - 1 - steps_ago)]
        client, deadline = self.store.client, time.monotonic() + 10
        client.flushall()
        for key, value in kept.items():
            if isinstance(value, dict) and value:
                client.hset(key, mapping=value)
            elif value:
                client.set(key, value)
        for key in (keys.active(USER), keys.starting(USER)):
            client.pexpire(key, 30_000)
        # A failover takes seconds: by then the clock has passed every epoch given before it.
        while self.server_ms() <= max(self.epochs, default=0):
            assert time.monotonic() < deadline
        self.model = deepcopy(model)
        self.shaken = set(self.acting)

    @invariant()
    def the_store_is_as_the_model_says(self) -> None:
        view = self.store.one(steps.read_user(USER, history=True))
        lease = self.store.client.hgetall(keys.starting(USER))
        model = self.model
        assert view.epoch == model.epoch
        assert (view.want or "", view.issued_at_ms, view.command_id) == (
            model.want,
            model.issued,
            model.command,
        )
        assert (view.failures, view.task_id, view.missing_since_ms is not None) == (
            model.failures,
            model.task,
            model.missing,
        )
        assert view.held_epoch == model.held[0]
        seen = view.mark and (view.mark.worker_id, view.mark.epoch, view.mark.task_id)
        assert seen == (model.mark and (model.mark.worker, model.mark.epoch, model.mark.task))
        if view.mark and model.mark:
            assert (view.mark.ready_at_ms is not None) == model.mark.ready
            assert 0 < view.mark.ttl_ms <= 30_000, "a mark without an end would fence its user for ever"
        assert (view.lease is None) == (model.lease is None)
        if view.lease and model.lease:
            assert (view.lease.epoch, view.lease.task_id) == (model.lease.epoch, model.lease.task)
            assert (lease.get("command_id", ""), int(lease["attempt"])) == (
                model.lease.command,
                model.lease.attempt,
            )
            assert 0 < view.lease.ttl_ms <= 120_000
        assert len(view.history) <= blueprint.HISTORY_LENGTH
        client = self.store.client
        desired, mark = client.hgetall(keys.desired(USER)), client.hgetall(keys.active(USER))
        kept = {keys.desired(USER): desired, keys.active(USER): mark, keys.starting(USER): lease}
        self.past.append(
            (deepcopy(model), kept | {keys.epoch(USER): str(view.epoch) if view.epoch else None})
        )

    @invariant()
    def a_glance_finds_well_whom_a_closer_look_finds_well(self) -> None:
        view = self.store.one(steps.read_user(USER))
        mark = view.live_mark
        well = mark is not None and mark.ready_at_ms is not None and view.published.get("phase") == "ready"
        task = steps.well_task(*self.store.run(*steps.glance(USER)))
        assert task == (mark.task_id if mark and well else "")

    @invariant()
    def at_most_one_worker_may_act(self) -> None:
        assert len(self.acting - self.shaken) <= 1, f"{self.acting - self.shaken} may all act"


#: The largest of the machines gets the most histories.
@pytest.mark.parametrize(("kind", "examples"), [("fakeredis", 250), ("valkey", 50)])
def test_every_history_of_one_user_follows_the_model(
    kind: str, examples: int, request: pytest.FixtureRequest
) -> None:
    store = Store(client_of(kind, request))
    run(lambda: UserMachine(store), examples, scripts=SCRIPTS)
