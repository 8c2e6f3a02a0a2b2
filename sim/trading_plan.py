"""What a seed means where people trade: orders, cancels, and the faults of brokers. Its dice are its own: the
rest of the seed's plan is the same with and without it."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from sim.plan import Fault, Plan, Wish

#: So many of all seeds are trading worlds.
SHARE = 0.2


#: Whose effects are struck: a process's, or the next one of this name.
_TARGETS = ("worker", "order_tasks", "begin_order", "place", "place", "cancel", "record_order", "get", "send")


def with_trading(plan: Plan) -> Plan:
    """The plan, for one seed of five with orders in it."""
    rng = Random(f"trading-{plan.seed}")
    if rng.random() >= SHARE:
        return plan
    orders = _orders(rng, plan)
    faults = [_fault(rng, wish.at) for wish in orders if rng.random() < 0.5]
    faults += [_fault(rng, rng.uniform(1.0, plan.duration)) for _ in range(rng.choice((0, 0, 1, 3)))]
    for wish in orders:
        if wish.action == "order" and rng.random() < 0.1:  # it hangs between writing ahead and sending
            faults.append(Fault(max(1.0, wish.at - 0.05), "stall", "begin_order", rng.choice((20.0, 26.0))))
    for wish in plan.wishes:
        if wish.action == "restart" and rng.random() < 0.5:  # nobody hears it, and yet it is connected
            faults.append(Fault(max(1.0, wish.at - rng.uniform(1.0, 20.0)), "cut_off", amount=80.0))
    return replace(
        plan,
        trading=True,
        wishes=tuple(sorted((*plan.wishes, *orders), key=lambda wish: wish.at)),
        faults=tuple(sorted((*plan.faults, *faults), key=lambda fault: fault.at)),
    )


def _orders(rng: Random, plan: Plan) -> list[Wish]:
    wishes = []
    for wish in plan.wishes:
        if wish.action not in ("start", "restart"):
            continue
        at = wish.at + rng.uniform(0.3, 10.0)
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            wishes.append(Wish(at, "order", wish.user))
            if rng.random() < 0.35:
                wishes.append(Wish(at + rng.choice((0.01, 0.1, 1.0, 8.0, 30.0)), "cancel", wish.user))
            at += rng.expovariate(0.05)
    return [wish for wish in wishes if wish.at < plan.duration]


def _fault(rng: Random, near: float) -> Fault:
    at = max(1.0, near + rng.choice((-3.0, -0.1, 0.0, 0.01, 0.1, 1.0)))
    kind = rng.choice(("strike",) * 5 + ("broker",) * 5)
    if kind == "strike":
        mode = rng.choice(("crash_before", "crash_after", "lost", "answer_lost", "stall", "stall", "pause"))
        target = rng.choice(_TARGETS)
        amount = rng.choice((2.0, 26.0, 28.0, 59.0)) if mode in ("stall", "pause") else 0.0
        skip = rng.choice((0, 0, 1, 2, 3, 4, 6)) if target in ("worker", "order_tasks") else 0
        return Fault(at, mode, target, amount, skip)
    return rng.choice(
        (
            Fault(at, "broker_away", amount=rng.choice((2.0, 15.0, 60.0, 200.0))),
            Fault(at, "broker_slow", amount=rng.choice((5.0, 30.0, 60.0))),
            Fault(at, "broker_slow", amount=30.0),
            Fault(at, "stream_lost", f"u{rng.randrange(3)}"),
            Fault(at, "updates", "late"),
            Fault(at, "updates", "late"),
            Fault(at, "updates", "twice"),
            Fault(at, "revoked", f"u{rng.randrange(3)}", amount=rng.choice((1.0, 20.0))),
            Fault(at, "vault_away", amount=rng.choice((3.0, 30.0))),
            Fault(at, "oom"),
        )
    )
