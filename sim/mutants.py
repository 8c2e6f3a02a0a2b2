"""Deliberate bugs. Each is one small change of the real code; the simulator must find every one of them.

A mutant that is not found is a missing invariant (or a guard that guards nothing): see `tests/simulation`.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha1
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any
from unittest.mock import patch

from muster import store

#: Every bug is found by one of the seeds below this, counted from zero.
FOUND_WITHIN = 2000


@dataclass(frozen=True, slots=True)
class Mutant:
    """`where` is a Lua step (`take_mark.lua`) or a function (`worker.life:_answer`); `old` becomes `new`."""

    name: str
    where: str
    old: str
    new: str
    seed: int = 0  #: the hunt looks here first, to be short; it goes through all seeds

    @property
    def hunt(self) -> Iterator[int]:
        """Every seed in which this bug must be found, the likely ones first."""
        return chain(range(self.seed, FOUND_WITHIN), range(min(self.seed, FOUND_WITHIN)))

    @contextmanager
    def alive(self) -> Iterator[None]:
        """The bug is in the code as long as this lasts."""
        with self._in_lua() if self.where.endswith(".lua") else self._in_python():
            yield

    @contextmanager
    def _in_lua(self) -> Iterator[None]:
        real = store._source

        def source(script: Path) -> tuple[str, str]:
            text, sha = real(script)
            if script.name != self.where and self.where != "_prelude.lua":
                return text, sha
            changed = _replaced(text, self)
            return changed, sha1(changed.encode(), usedforsecurity=False).hexdigest()

        with patch.object(store, "_source", source):
            yield

    @contextmanager
    def _in_python(self) -> Iterator[None]:
        module_name, _, path = self.where.partition(":")
        module = import_module(module_name)
        holder: Any = module
        *parents, name = path.split(".")
        for parent in parents:
            holder = getattr(holder, parent)
        original = inspect.getattr_static(holder, name)
        function: Any = original.fget if isinstance(original, property) else original
        text = _replaced(textwrap.dedent(inspect.getsource(function)), self)
        scope: dict[str, Any] = {}
        code = compile(f"from __future__ import annotations\n{text}", self.where, "exec")
        exec(code, module.__dict__, scope)  # noqa: S102 - our own source, with one bug
        with patch.object(holder, name, scope[name]):
            yield


def _replaced(text: str, mutant: Mutant) -> str:
    assert mutant.old in text, (
        f"the code of {mutant.where} has changed; bring mutant '{mutant.name}' up to date"
    )
    return text.replace(mutant.old, mutant.new)


MUTANTS = (
    Mutant(
        "take the mark with an old epoch",
        "take_mark.lua",
        "if current > epoch then return {'stale', int(current)} end",
        "",
    ),
    Mutant(
        "beat without comparing the epoch",
        "beat_mark.lua",
        "if current > epoch then return {'fenced', int(current)} end",
        "",
    ),
    Mutant(
        "beat without comparing the holder",
        "beat_mark.lua",
        "then return {'lost'",
        "and false then return {'lost'",
    ),
    Mutant("take the mark while another holds it", "take_mark.lua", "return {'held', mark.worker_id}", ""),
    Mutant(
        "let a second worker have the same epoch",
        "take_mark.lua",
        "if tonumber(desired.held_epoch or '-1') == epoch and desired.worker_id ~= worker_id then",
        "if false then",
        seed=25,
    ),
    Mutant(
        "forget issued_at of a start",
        "begin_start.lua",
        "if not by_maintenance and issued_at < tonumber(desired.issued_at or '0') then",
        "if false then",
        seed=57,
    ),
    Mutant(
        "forget issued_at of a stop",
        "begin_stop.lua",
        "if issued_at < tonumber(desired.issued_at or '0') then",
        "if false then",
        seed=59,
    ),
    Mutant("stop without raising the epoch", "begin_stop.lua", "epoch = raise_epoch(KEYS[2], epoch)", ""),
    Mutant(
        "count epochs instead of reading the clock",
        "_prelude.lua",
        "math.max(current + 1, now_ms())",
        "current + 1",
        seed=205,
    ),
    Mutant(
        "an old task's end clears its successor's mark",
        "task_stopped.lua",
        "if mark[1] == ARGV[1] then",
        "if mark[1] then",
    ),
    Mutant(
        "forget the owner's last wish",
        "forget_user.lua",
        "redis.call('HDEL', KEYS[1], 'task_id', 'missing_since')",
        "redis.call('DEL', KEYS[1])",
    ),
    Mutant(
        "reserve more claims than there are workers",
        "reserve_slot.lua",
        " - redis.call('ZCARD', KEYS[2])",
        "",
    ),
    Mutant(
        "refill without counting launches", "plan_pool.lua", "target - living - launching", "target - living"
    ),
    Mutant(
        "let late pool workers in",
        "pool_beat.lua",
        "if not reserved and config.target and taken >= tonumber(config.target) then return {'surplus'} end",
        "",
        seed=76,
    ),
    Mutant(
        "delete the claim before taking the mark",
        "worker.life:_answer",
        "    given = claim.assignment()",
        "    _quietly(me, delivery.done)\n    given = claim.assignment()",
    ),
    Mutant(
        "count the lease from the answer",
        "worker.heart:Heart.beat",
        "me.lease.renewed(sent_at)",
        "me.lease.renewed(me.clock.monotonic())",
        seed=424,
    ),
    Mutant(
        "act until told otherwise",
        "worker.lease:Lease.may_act",
        "return not self.ended and self._clock.monotonic() - self._renewed_at < _STOP_S",
        "return not self._ended",
    ),
    Mutant(
        "do not mind the fence",
        "worker.heart:Heart.beat",
        'if tag in ("fenced", "lost"):',
        'if tag == "lost":',
    ),
    Mutant(
        "skip the brake", "muster.maintenance:braked", "return missing", "return False and missing", seed=71
    ),
    Mutant(
        "launch with a token without the epoch",
        "muster.launchers.port:Launch.token",
        "self.owner, self.epoch, self.attempt",
        "self.owner, self.attempt",
    ),
    Mutant(
        "deduplicate commands by what they say",
        "muster.commands:Command.dedup_id",
        "parts = [self.user_id, self.command_id]",
        "parts = [self.user_id, self.action.value]",
    ),
    Mutant(
        "report a failed command as done",
        "lambdas.worker_control.handler:_failures",
        'failures[record["messageId"]] = result',
        "continue",
        seed=40,
    ),
    Mutant(
        "never repair a start that launched nothing",
        "muster.reconcile:_wants_worker",
        'return _restart(seen, "it has no task")',
        'return Wait("it has no task")',
    ),
    Mutant(
        "drop a mark that somebody else holds",
        "drop_mark.lua",
        "if mark[1] ~= ARGV[2] or mark[2] ~= ARGV[1] then return {'not_holder'} end",
        "",
    ),
    Mutant(
        "stop an orphan at the first suspicion",
        "muster.maintenance:_judge_leftovers",
        "suspected=task_id in suspects",
        "suspected=True",
        seed=1205,
    ),
    Mutant(
        "call ECS without asking the budget",
        "muster.launchers.ecs:EcsLauncher._call",
        "if self._budget is not None:",
        "if self._budget is not None and bucket.name != 'ecs-read':",
    ),
    Mutant(
        "launch repairs on what is a person's",
        "muster.lifecycle:_launch",
        "repairs = start.command.start_cause is Cause.REPAIR",
        "repairs = False",
    ),
    Mutant(
        "find a worker well that has no mark",
        "muster.steps:well_task",
        'return ""',
        'return "somebody"',
    ),
    Mutant(
        "refill with what is kept for repairs",
        "muster.budget:CallBudget.__call__",
        "floor = round(bucket.burst * self._priority.value)",
        "floor = 0",
    ),
)
