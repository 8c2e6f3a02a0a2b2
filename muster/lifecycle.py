"""Start, stop, restart: a batch of commands becomes claims, launches and fences.

One batch is handled in waves: the first command of every user, then the second, and so on. A wave of any
size costs the same three round trips to Valkey, because its steps travel together; a user whose command
failed gets none of its later ones, which keeps the order its queue promised.

    begin (fence, lease) -> reserve a pool slot and claim -> else launch, bind the task to the lease
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from muster import blueprint, steps
from muster.claims import Claim
from muster.commands import Action, Command
from muster.deps import Deps
from muster.errors import MusterError, Refused, TryLater
from muster.launchers.port import Launch, NewAttempt, TaskKind
from muster.model import Cause
from muster.store import Step
from muster.traces import trace_of


class Outcome(StrEnum):
    """What became of a command."""

    CLAIMED = "claimed"  #: a pool worker was asked to take the user
    LAUNCHED = "launched"  #: a task was started for the user
    ACTIVE = "active"  #: a worker of the current epoch is already live
    STARTING = "starting"  #: another command is already starting it
    STOPPED = "stopped"  #: fenced; what still ran was told to stop
    SUPERSEDED = "superseded"  #: a newer command has been seen
    MOVED = "moved"  #: a repair whose epoch is gone
    FAILED = "failed"  #: a repair that found too many failures: given up, visibly


Result = Outcome | MusterError


@dataclass(slots=True)
class _Start:
    """A start that has begun, on its way to a claim or a launch."""

    command: Command
    begin: steps.Begin

    @property
    def claim_fields(self) -> tuple[int, str, str, str]:
        begin = self.begin
        return begin.issued_at_ms, begin.command_id, begin.credentials_ref, self.command.start_cause.value

    def claim(self, version: str) -> Claim:
        return Claim(self.command.user_id, self.begin.epoch, version, *self.claim_fields)

    def launch(self) -> Launch:
        issued_at, command_id, credentials_ref, cause = self.claim_fields
        env = {
            "MUSTER_ISSUED_AT": str(issued_at),
            "MUSTER_COMMAND_ID": command_id,
            "MUSTER_CREDENTIALS_REF": credentials_ref,
            "MUSTER_CAUSE": cause,
        }
        user, begin = self.command.user_id, self.begin
        return Launch(TaskKind.USER, user, epoch=begin.epoch, attempt=begin.attempt, env=env)


def apply(commands: Sequence[Command], deps: Deps) -> list[Result]:
    """What became of each command, in order. Errors are returned: one must not fail its neighbours."""
    results: dict[int, Result] = {}
    failed_users: set[str] = set()
    waiting = list(enumerate(commands))
    while waiting:
        wave: dict[str, tuple[int, Command]] = {}
        later = []
        for position, command in waiting:
            if command.user_id in failed_users:
                results[position] = TryLater("an earlier command of this user must be done first")
            elif command.user_id in wave:
                later.append((position, command))
            else:
                wave[command.user_id] = (position, command)
        for (position, command), result in zip(
            wave.values(), _apply_wave([command for _, command in wave.values()], deps), strict=True
        ):
            results[position] = result
            if isinstance(result, MusterError):
                failed_users.add(command.user_id)
        waiting = later
    return [results[position] for position in range(len(commands))]


def _apply_wave(commands: list[Command], deps: Deps) -> list[Result]:
    """At most one command per user."""
    if not commands:
        return []
    began = deps.clock.now()
    try:
        # The step before the index: whoever removes a forgotten user checks the epoch after removing.
        replies = deps.store.run_durably(
            *(step for c in commands for step in (_first_step(c), steps.index_add(c.user_id)))
        )
    except TryLater as away:
        return [away for _ in commands]
    results: dict[str, Result] = {}
    starts: list[_Start] = []
    for command, reply in zip(commands, replies[::2], strict=True):
        if command.action is Action.STOP:
            results[command.user_id] = _stop_tasks(reply, command, deps)
        elif isinstance(reply, steps.Begin):
            starts.append(_Start(command, reply))
        else:
            results[command.user_id] = Outcome(reply.tag)
    try:
        claimed = _claim(starts, deps)
        results |= {start.command.user_id: Outcome.CLAIMED for start in claimed}
        results |= _launch([start for start in starts if start not in claimed], deps)
    except TryLater as away:
        # The leases stand; the same commands come back and resume the same epochs.
        for start in starts:
            results.setdefault(start.command.user_id, away)
    for start in starts:
        trace = trace_of(start.begin.command_id, start.command.start_cause, start.begin.epoch)
        result = str(results[start.command.user_id])
        deps.spans.add(trace, "worker_control", began, deps.clock.now(), result=result)
    return [results[command.user_id] for command in commands]


def _first_step(command: Command) -> Step[Any]:
    user, issued_at, command_id = command.user_id, command.issued_at_ms, command.command_id
    if command.action is Action.STOP:
        return steps.begin_stop(user, issued_at, command_id, command.reason)
    return steps.begin_start(
        user, command.start_cause, issued_at, command_id, command.credentials_ref, command.seen_epoch or 0
    )


def _stop_tasks(reply: tuple[str, ...], command: Command, deps: Deps) -> Result:
    tag, *rest = reply
    if tag == "superseded":
        return Outcome.SUPERSEDED
    try:
        for task_id in rest[1:]:
            deps.launcher.stop(task_id, command.reason or "stopped by its owner")
    except MusterError as error:
        return error  # a repeat of this stop gets the same tasks again
    return Outcome.STOPPED


def _claim(starts: list[_Start], deps: Deps) -> list[_Start]:
    """The starts that a pool worker was asked to take."""
    if not starts:
        return []
    claims = [start.claim(deps.version) for start in starts]
    inline = deps.channel.sends_with_reservation
    slots = deps.store.run(
        *(
            steps.reserve_slot(deps.pool, claim.claim_id, deps.version, claim.to_json() if inline else "")
            for claim in claims
        )
    )
    reserved = [claim for claim, slot in zip(claims, slots, strict=True) if slot.reserved]
    unsent = deps.channel.send(reserved) if reserved else []
    if unsent:
        deps.store.run(*(steps.release_slot(deps.pool, claim.claim_id) for claim in unsent))
    # Only the claim that crosses the line wakes the manager: a start must not cost a second call to AWS.
    if any(s.reserved and s.left < s.target * blueprint.POOL_LOW_WATER <= s.left + 1 for s in slots):
        deps.wake_pool()
    sent = {claim.user_id for claim in reserved if claim not in unsent}
    return [start for start in starts if start.command.user_id in sent]


def _launch(starts: list[_Start], deps: Deps) -> dict[str, Result]:
    """Launch a task for each start and bind it to its lease; one round trip for all bindings."""
    results: dict[str, Result] = {}
    follow_ups: list[Step[Any]] = []
    launched: list[tuple[_Start, str]] = []
    for start in starts:
        user, epoch = start.command.user_id, start.begin.epoch
        repairs = start.command.start_cause is Cause.REPAIR
        launcher = deps.repairs if repairs and deps.repairs is not None else deps.launcher
        try:
            task_id = launcher.run(start.launch())
        except NewAttempt as used_up:
            follow_ups.append(steps.abort_start(user, epoch, str(used_up), again=True))
            results[user] = used_up
        except Refused as refused:
            follow_ups.append(steps.abort_start(user, epoch, str(refused), again=False))
            results[user] = refused
        except TryLater as unsure:
            results[user] = unsure  # the lease stands: the retry asks with the same token
        else:
            launched.append((start, task_id))
    bound = [steps.bind_start(start.command.user_id, start.begin.epoch, task) for start, task in launched]
    owned = [steps.own_task(task, start.command.user_id) for start, task in launched]
    replies = deps.store.run(*bound, *owned, *follow_ups)
    for (start, task_id), reply in zip(launched, replies, strict=False):
        results[start.command.user_id] = Outcome.SUPERSEDED if reply[0] == "stale" else Outcome.LAUNCHED
        if reply[0] == "stale":
            # Not needed for safety (its worker finds itself stale and exits), so it fails nobody's start.
            with suppress(MusterError):
                deps.launcher.stop(task_id, "a newer command overtook this start")
    return results
