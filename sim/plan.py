"""What one seed means: the deployment, what people do, and which faults strike when. Plain data, so that a
failing history can be shrunk to the faults that matter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from muster.blueprint import BRAKE_MINIMUM

#: Virtual wall time at which every history begins.
START = 1_800_000_000.0


@dataclass(frozen=True, slots=True)
class Wish:
    """Something a person does. `late` is how long the message is on its way to the queue."""

    at: float
    action: str  #: start, stop, restart, redrive, garbage; order, cancel where people trade
    user: str = ""
    late: float = 0.0

    def __str__(self) -> str:
        return f"{self.at:7.1f}s {self.action} {self.user}".rstrip()


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong. `target`, `amount` and `skip` mean what the kind says (see `faults.py`)."""

    at: float
    kind: str
    target: str = ""
    amount: float = 0.0
    skip: int = 0

    def __str__(self) -> str:
        words = [f"{self.at:7.1f}s", self.kind, self.target]
        if self.amount:
            words.append(f"{self.amount:.2f}")
        if self.skip:
            words.append(f"after {self.skip} more")
        return " ".join(word for word in words if word)


@dataclass(frozen=True, slots=True)
class Plan:
    """One history before it happens."""

    seed: int
    lossy: bool
    claims_on_valkey: bool
    users: int
    pool_target: int
    duration: float
    wishes: tuple[Wish, ...]
    faults: tuple[Fault, ...]
    trading: bool = False  #: sessions are the real broker's, and people order

    def without_faults(self, *numbers: int) -> Plan:
        kept = tuple(fault for n, fault in enumerate(self.faults) if n not in numbers)
        return replace(self, faults=kept)

    def without_wishes(self, *numbers: int) -> Plan:
        kept = tuple(wish for n, wish in enumerate(self.wishes) if n not in numbers)
        return replace(self, wishes=kept)


_FUNCTIONS = ("worker_control", "maintenance", "maintenance_worker", "pool_manager")
_MODES = ("crash_before", "crash_after", "lost", "answer_lost", "pause", "stall")


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(seed)
    users = rng.choice((1, 2, 2, 3, 6))
    duration = rng.uniform(120.0, 330.0)
    lossy = rng.random() < 0.35
    wishes = _wishes(rng, users, duration)
    plan = Plan(
        seed=seed,
        lossy=lossy,
        claims_on_valkey=rng.random() < 0.5,
        users=users,
        pool_target=rng.choice((0, 1, 2, 3)),
        duration=duration,
        wishes=wishes,
        faults=_faults(rng, wishes, users, duration, lossy=lossy),
    )
    from sim.trading_plan import with_trading

    return with_trading(_with_pairs(plan))


def _wishes(rng: Random, users: int, duration: float) -> tuple[Wish, ...]:
    wishes = []
    for number in range(users):
        user, at = f"u{number}", rng.uniform(0.0, duration / 4)
        wishes.append(Wish(at, "start", user))
        for _ in range(rng.choice((0, 0, 1, 2, 3))):
            # Often in a hurry: the next one while the one before is still under way.
            at += rng.choice((0.0, 0.5, 3.0, 30.0)) + rng.uniform(0.01, 40.0) * rng.random()
            late = rng.uniform(0.0, 3.0) if rng.random() < 0.1 else 0.0
            wishes.append(Wish(at, rng.choice(("start", "stop", "stop", "restart")), user, late))
    if rng.random() < 0.3:
        wishes.append(Wish(rng.uniform(duration / 2, duration), "redrive"))
    if rng.random() < 0.1:
        wishes.append(Wish(rng.uniform(0.0, duration), "garbage", "u0"))
    return tuple(sorted((w for w in wishes if w.at < duration), key=lambda wish: wish.at))


_KINDS = ("strike",) * 6 + ("worker",) * 4 + ("store",) * 4 + ("ecs",) * 6 + ("aws",) * 3


def _faults(
    rng: Random, wishes: tuple[Wish, ...], users: int, duration: float, *, lossy: bool
) -> tuple[Fault, ...]:
    """Mostly around what people do, because that is when something can be cut in half. Some seeds have a
    theme: few kinds of faults, and many of them."""
    count = rng.choice((0, 1, 2, 3, 4, 6, 8))
    themes = (
        [_fault(rng, 0.0, rng.choice(_KINDS), lossy=lossy) for _ in range(3)] if rng.random() < 0.4 else []
    )
    faults = []
    for _ in range(count + len(themes)):
        at = rng.uniform(1.0, duration)
        if wishes and rng.random() < 0.6:
            at = min(duration, rng.choice(wishes).at + rng.expovariate(0.2))
        if themes and rng.random() < 0.7:
            faults.append(replace(rng.choice(themes), at=at, skip=rng.choice((0, 1, 2, 3, 5))))
        else:
            faults.append(_fault(rng, at, rng.choice(_KINDS), lossy=lossy))
    if users >= BRAKE_MINIMUM and rng.random() < 0.25:
        faults.append(Fault(rng.uniform(duration / 3, duration), "zone_silent"))
    for wish in wishes:
        if wish.action == "restart" and rng.random() < 0.5:  # people restart what seems to hang
            faults.append(Fault(max(1.0, wish.at - rng.uniform(1.0, 25.0)), "stall", "worker", 28.0))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _with_pairs(plan: Plan) -> Plan:
    """Some things go wrong only together, more rarely than chance would bring them. Dice of its own."""
    rng = Random(f"pairs-{plan.seed}")
    pairs: list[Fault] = []
    for wish in plan.wishes:
        if wish.action == "start" and rng.random() < 0.04:  # its claim comes again, to a second worker
            pairs += (Fault(wish.at, "lost", "delete"), Fault(wish.at, "session_fails", amount=1.0))
        if wish.action == "restart" and rng.random() < 0.3:  # the goodbye comes when a successor is there
            pairs.append(Fault(wish.at, "pause", "drop_mark", 59.0))
    return replace(plan, faults=tuple(sorted((*plan.faults, *pairs), key=lambda fault: fault.at)))


def _fault(rng: Random, at: float, kind: str, *, lossy: bool) -> Fault:
    if kind == "strike":
        target = rng.choice((*_FUNCTIONS, "worker_control", "worker", "worker"))
        mode = rng.choice(_MODES)
        amount = rng.choice((0.2, 2.0, 15.0, 28.0, 59.0, 100.0)) if mode in ("pause", "stall") else 0.0
        return Fault(at, mode, target, amount, rng.choice((0, 0, 1, 2, 3, 5, 8)))
    if kind == "worker":
        return rng.choice(
            (
                Fault(at, "freeze", amount=rng.choice((2.0, 12.0, 26.0, 28.0, 35.0, 70.0))),
                Fault(at, "oom"),
                Fault(at, "cut_off", amount=rng.choice((5.0, 20.0, 40.0, 80.0))),
                Fault(at, "session_fails", amount=rng.choice((1.0, 2.0))),
                Fault(at, "session_refused"),
                Fault(at, "oom_all"),
            )
        )
    if kind == "store":
        if lossy and rng.random() < 0.6:
            if rng.random() < 0.1:
                return Fault(at, "store_wiped")
            lag = rng.choice((0.05, 0.5, 2.0, 10.0))
            return Fault(at, "failover", amount=lag, skip=rng.choice((1, 5, 20)))
        return rng.choice(
            (
                Fault(at, "store_away", amount=rng.choice((1.0, 8.0, 28.0, 45.0))),
                Fault(at, "store_slow", amount=rng.choice((5.0, 30.0))),
                Fault(at, "failover", amount=0.0, skip=rng.choice((1, 10, 30))),
                Fault(at, "control_deaf", amount=rng.choice((30.0, 300.0))),
            )
        )
    if kind == "ecs":
        return rng.choice(
            (
                Fault(at, "launch", "slow", rng.choice((20.0, 100.0, 150.0))),
                Fault(at, "launch", "fail"),
                Fault(at, "launch", "never"),
                Fault(at, "launch", "answer_lost"),
                Fault(at, "launch", "failures", rng.choice((0.0, 1.0))),
                Fault(at, "throttled", amount=rng.choice((5.0, 30.0, 90.0))),
                Fault(at, "blind", amount=rng.choice((30.0, 120.0))),
                Fault(at, "stale", amount=rng.choice((5.0, 30.0, 60.0))),
                Fault(at, "event", "lost"),
                Fault(at, "event", "late"),
                Fault(at, "event", "twice"),
                Fault(at, "host_lost"),
                Fault(at, "host_silent"),
                Fault(at, "zone_silent"),
                Fault(at, "drain"),
            )
        )
    return rng.choice(
        (
            Fault(at, "sqs_duplicate"),
            Fault(at, "claim_duplicate"),
            Fault(at, "sqs_away", amount=rng.choice((2.0, 20.0))),
            Fault(at, "invoke_twice", rng.choice(_FUNCTIONS[1:])),
            Fault(at, "invoke_lost", rng.choice(_FUNCTIONS[1:])),
            Fault(at, "pool_target", amount=rng.choice((0.0, 1.0, 3.0))),
        )
    )
