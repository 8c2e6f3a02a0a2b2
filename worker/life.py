"""One life of a worker, as a generator: what it decides is here, what it waits for is yielded.

The real worker answers the yields by blocking; the simulator, on virtual time. Both run this code.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from muster import keys, steps
from muster.blueprint import HELD_PATIENCE, HELD_RETRY, POOL_BEAT
from muster.claims import Claim, Delivery
from muster.clock import Clock
from muster.errors import BadCommand, TryLater
from muster.model import Assignment
from muster.store import Store, command, text
from worker.exits import Exit
from worker.lease import Lease

_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Go on after so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AwaitClaim:
    """Go on with a `Delivery`, or with None after so many seconds."""

    seconds: float


Effect = Pause | AwaitClaim


@dataclass(frozen=True, slots=True)
class Me:
    """Who this worker is, and what it works with."""

    worker_id: str
    task_id: str
    version: str
    pool: str
    launch_id: str
    host: str
    store: Store
    clock: Clock
    lease: Lease
    stopping: Callable[[], bool]
    log: Callable[[str], None]


Taken = Generator[Effect, Any, "Assignment | Exit"]


def cold_start(me: Me, given: Assignment) -> Taken:
    """Take the mark this worker was launched for, or learn that somebody else was quicker."""
    taken = yield from _take(me, given)
    if taken == "taken":
        return given
    return Exit.DONE if me.stopping() else Exit.STALE


def pool_wait(me: Me) -> Taken:
    """Wait in the pool until a claim wins its mark; one that does not is settled, and the wait goes on."""
    while not me.stopping():
        try:
            answer = me.store.one(
                steps.pool_beat(me.pool, me.worker_id, me.task_id, me.version, me.launch_id, me.host)
            )[0]
            if answer != "idle":
                me.log(f"leaving the pool: {answer}")
                return Exit.DONE
            delivery: Delivery | None = yield AwaitClaim(POOL_BEAT.total_seconds())
        except TryLater as away:
            me.log(str(away))
            yield Pause(_RETRY_S)
            continue
        if delivery is None:
            continue
        settled = yield from _answer(me, delivery)
        if settled is not None:
            return settled
    _leave(me)
    return Exit.DONE


def _answer(me: Me, delivery: Delivery) -> Generator[Effect, Any, Assignment | Exit | None]:
    """Try for the mark of this claim; None means: back to the pool."""
    try:
        claim = Claim.from_json(delivery.body)
    except BadCommand as bad:
        me.log(str(bad))
        _quietly(me, delivery.done)
        return None
    if claim.version != me.version and _is_current(me):
        # The claim is what is old. Given back, it would go round and end every worker of the new version;
        # its start lease runs out, and the sweep starts the user again.
        me.log(f"claim of an old version settled: {claim.version}, worker {me.version}")
        _quietly(me, delivery.done)
        return None
    if claim.version != me.version or not (yield from _leave_with(me, claim)):
        # Somebody else must have it; this worker would only take it again.
        _leave(me)
        _quietly(me, delivery.give_back)
        me.log(f"claim given back: claim {claim.version}, worker {me.version}, on its way out")
        return Exit.DONE
    given = claim.assignment()
    taken = yield from _take(me, given)
    if taken not in ("taken", "stale", "duplicate"):
        # Nobody has said that this claim is over: the store was away, or the predecessor does not let go.
        _quietly(me, delivery.give_back)
        return Exit.DONE if me.stopping() else None
    # The message goes only now: a crash before this line lets another worker have the claim.
    _quietly(me, delivery.done)
    return given if taken == "taken" else None


def _leave_with(me: Me, claim: Claim) -> Generator[Effect, Any, bool]:
    """Out of the pool, with this claim. False for a worker that must not serve any more: it was told to stop,
    or the manager has taken it out of the pool and is about to stop it."""
    while not me.stopping():
        try:
            return me.store.one(steps.take_slot(me.pool, me.worker_id, claim.claim_id))[0] == "left"
        except TryLater as away:
            me.log(str(away))
            yield Pause(_RETRY_S)
    return False


def _is_current(me: Me) -> bool:
    """Is this worker's version the one the pool should have?"""
    version = command("HGET", keys.pool_config(me.pool), "version", parse=lambda reply: reply and text(reply))
    try:
        return me.store.one(version) == me.version
    except TryLater as away:
        me.log(str(away))
        return False


def _take(me: Me, given: Assignment) -> Generator[Effect, Any, str]:
    """Ask for the mark until there is an answer (the last one is returned); while the predecessor lets go,
    ask again."""
    give_up_at = me.clock.monotonic() + HELD_PATIENCE.total_seconds()
    while True:
        sent_at = me.clock.monotonic()
        try:
            tag, *detail = me.store.one(steps.take_mark(given, me.worker_id, me.task_id, me.version))
        except TryLater as away:
            me.log(str(away))
            tag, detail = "away", []
        if tag == "taken":
            me.lease.renewed(sent_at)
            return tag
        if tag in ("stale", "duplicate") or me.stopping() or me.clock.monotonic() > give_up_at:
            me.log(f"no mark for {given.user} at epoch {given.epoch}: {tag} {' '.join(detail)}")
            return tag
        yield Pause(HELD_RETRY.total_seconds() if tag == "held" else _RETRY_S)


def _leave(me: Me) -> None:
    _quietly(me, lambda: me.store.one(steps.leave_pool(me.pool, me.worker_id)))


def _quietly(me: Me, effect: Callable[[], Any]) -> None:
    """For effects whose loss is harmless: a claim seen twice is a duplicate, an idle entry expires."""
    try:
        effect()
    except Exception as failed:  # noqa: BLE001 - whatever the channel raises, this worker's life goes on
        me.log(f"ignored: {failed!r}")
