"""What one seed means in the job world: the pool, what people ask of it, and which faults strike when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from sim.plan import Fault

HEARTBEAT_S = 5.0  #: of every simulated worker; stale and visible are twice that, as by default
STALE_S = VISIBILITY_S = 2 * HEARTBEAT_S
IDLE_EXIT_S = 5.0
TIME_LIMIT_S = 30.0
DRAIN_S = 6.0
#: Wall clocks of two hosts differ by at most twice this; it must stay well below the heartbeat.
SKEW_S = 0.5


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job: how long it works, in how many checkpointed steps, and what is wrong with it at first."""

    seconds: float
    steps: int = 1
    trouble: str = ""  #: fails, crashes, hangs, deaf (does not listen to a cancel)
    bad_attempts: int = 0  #: this many attempts meet the trouble
    dedup: str | None = None
    delay: float = 0.0
    priority: int = 0
    max_retries: int = 3

    def __str__(self) -> str:
        words = [f"{self.seconds:.1f} s in {self.steps}"]
        words += [f"{self.trouble} x{self.bad_attempts}"] if self.trouble else []
        words += [f"dedup {self.dedup}"] if self.dedup else []
        words += [f"delay {self.delay:g}"] if self.delay else []
        words += [f"priority {self.priority}"] if self.priority else []
        return f"{', '.join(words)}, {self.max_retries} tries"


@dataclass(frozen=True, slots=True)
class Wish:
    """Something a person does. `target` counts the jobs that this person knows, newest first."""

    at: float
    action: str  #: push, cancel, resume, rerun, redrive, check
    jobs: tuple[JobPlan, ...] = ()
    target: int = 0

    def __str__(self) -> str:
        what = "; ".join(map(str, self.jobs)) if self.action == "push" else ""
        return f"{self.at:7.1f}s {self.action} {what}".rstrip()


@dataclass(frozen=True, slots=True)
class Plan:
    """One history of a job pool before it happens."""

    seed: int
    lossy: bool
    max_workers: int
    batch: int  #: jobs that a worker claims at once
    max_jobs: int | None  #: a worker leaves after this many
    restarts: bool  #: a crashed worker is restarted in place, as a container is; a local process is not
    check_every: float  #: the slow schedule
    duration: float
    wishes: tuple[Wish, ...]
    faults: tuple[Fault, ...]

    def without_faults(self, *numbers: int) -> Plan:
        return replace(self, faults=tuple(f for n, f in enumerate(self.faults) if n not in numbers))

    def without_wishes(self, *numbers: int) -> Plan:
        return replace(self, wishes=tuple(w for n, w in enumerate(self.wishes) if n not in numbers))


def make_plan(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(f"jobs-{seed}")
    duration = rng.uniform(25.0, 80.0)
    lossy = rng.random() < 0.2
    wishes = _wishes(rng, duration)
    faults = _faults(rng, wishes, duration, lossy=lossy)
    if rng.random() < 0.35:
        wish, fault = _comes_back_late(rng, duration)
        wishes, faults = (*wishes, wish), (*faults, fault)
    wishes = tuple(sorted((*wishes, *_looks(rng, faults, duration)), key=lambda wish: wish.at))
    return Plan(
        seed=seed,
        lossy=lossy,
        max_workers=rng.choice((1, 1, 2, 2, 3)),
        batch=rng.choice((1, 1, 1, 3)),
        max_jobs=rng.choice((None, None, None, None, 1, 2)),
        restarts=rng.random() < 0.5,
        check_every=rng.choice((60.0, 300.0)),
        duration=duration,
        wishes=wishes,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _wishes(rng: Random, duration: float) -> tuple[Wish, ...]:
    wishes = []
    at = rng.uniform(0.0, 5.0)
    for _ in range(rng.choice((1, 2, 3, 3, 4, 5))):
        count = rng.choice((1, 1, 1, 2, 4))
        wishes.append(Wish(at, "push", tuple(_job(rng) for _ in range(count))))
        at += rng.choice((0.0, 0.02, 1.0, 6.0, 12.0)) + rng.random() * rng.choice((0.1, 5.0))
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        action = rng.choice(("cancel", "cancel", "cancel", "resume", "rerun", "redrive", "check"))
        after = rng.choice(wishes).at + rng.choice((0.05, 2.0, 15.0)) * rng.random()
        wishes.append(Wish(after, action, target=rng.randrange(4)))
        if action == "cancel" and rng.random() < 0.3:
            wishes.append(Wish(after + rng.choice((0.1, 5.0, 15.0)), "resume", target=wishes[-1].target))
    if rng.random() < 0.3:
        wishes.append(Wish(rng.uniform(duration / 2, duration), "redrive"))
    return tuple(sorted((w for w in wishes if w.at < duration), key=lambda wish: wish.at))


def _comes_back_late(rng: Random, duration: float) -> tuple[Wish, Fault]:
    """A long job, and its worker away in the middle of it: long enough for another to take the job over."""
    at = rng.uniform(0.0, max(0.0, duration - 25.0))
    job = JobPlan(
        round(rng.uniform(11.0, 20.0), 3), steps=rng.choice((1, 3)), max_retries=rng.choice((2, 3)),
        trouble=rng.choice(("", "", "fails", "crashes")), bad_attempts=1,
    )  # fmt: skip
    who = rng.choice(("parent", "parent", "worker", "child"))
    return Wish(at, "push", (job,)), Fault(
        at + rng.uniform(3.0, 8.0), "freeze", who, rng.choice((12.0, 16.0, 25.0))
    )


def _looks(rng: Random, faults: tuple[Fault, ...], duration: float) -> list[Wish]:
    """Checks while somebody is away for long enough to be lost, or in the moment in which they come back."""
    looks = []
    for fault in faults:
        if (
            fault.amount > STALE_S
            and fault.kind in ("freeze", "pause", "stall", "cut_off")
            and rng.random() < 0.8
        ):
            away = rng.choice((STALE_S + 2.0, fault.amount / 2, fault.amount, fault.amount))
            looks.append(Wish(fault.at + away + rng.uniform(-0.01, 0.03), "check"))
        if fault.kind in ("kill", "kill_all") and rng.random() < 0.5:
            looks.append(Wish(fault.at + STALE_S + rng.uniform(0.0, 5.0), "check"))
    return [look for look in looks if look.at < duration]


def _job(rng: Random) -> JobPlan:
    trouble = rng.choice(("fails", "fails", "crashes", "hangs", "deaf")) if rng.random() < 0.25 else ""
    return JobPlan(
        seconds=round(rng.choice((0.02, 0.2, 1.0, 4.0, 13.0, 22.0)) * rng.uniform(0.5, 1.0), 3),
        steps=rng.choice((1, 1, 2, 4)),
        trouble=trouble,
        bad_attempts=rng.choice((1, 1, 2, 9)) if trouble else 0,
        dedup=rng.choice(("k1", "k2")) if rng.random() < 0.25 else None,
        delay=rng.choice((0.5, 6.0, 20.0)) if rng.random() < 0.15 else 0.0,
        priority=rng.choice((0, 0, 0, 1, 5)),
        max_retries=rng.choice((1, 2, 3, 3)),
    )


_MODES = ("crash_before", "crash_after", "lost", "answer_lost", "pause", "stall")
_KINDS = ("strike",) * 6 + ("worker",) * 5 + ("store",) * 3 + ("launch",) * 4 + ("squeeze",) * 3


def _faults(rng: Random, wishes: tuple[Wish, ...], duration: float, *, lossy: bool) -> tuple[Fault, ...]:
    """Mostly while people want something. Some seeds have a theme: one kind of fault, again and again."""
    theme = rng.choice(_KINDS) if rng.random() < 0.4 else ""
    faults = []
    for _ in range(rng.choice((0, 1, 1, 2, 3, 4, 6))):
        at = rng.uniform(1.0, duration)
        if wishes and rng.random() < 0.7:
            at = min(duration, rng.choice(wishes).at + rng.expovariate(0.15))
        kind = theme if theme and rng.random() < 0.7 else rng.choice(_KINDS)
        faults.append(_fault(rng, at, kind, lossy=lossy))
    return tuple(sorted(faults, key=lambda fault: fault.at))


def _fault(rng: Random, at: float, kind: str, *, lossy: bool) -> Fault:
    if kind == "strike":
        target = rng.choice(("child", "child", "child", "parent", "parent", "person", "schedule"))
        mode = rng.choice(_MODES)
        amount = rng.choice((0.2, 3.0, 11.0, 30.0)) if mode in ("pause", "stall") else 0.0
        return Fault(at, mode, target, amount, rng.choice((0, 0, 1, 2, 3, 5)))
    if kind == "worker":
        length = rng.choice((3.0, 9.0, 12.0, 14.0, 25.0, 40.0))
        return rng.choice(
            (
                Fault(at, "freeze", "worker", length),
                Fault(at, "freeze", "worker", length),
                Fault(at, "freeze", "parent", length),
                Fault(at, "freeze", "child", length),
                Fault(at, "kill", "worker"),
                Fault(at, "kill", "parent"),
                Fault(at, "kill", "child"),
                Fault(at, "terminate"),
                Fault(at, "terminate"),
                Fault(at, "cut_off", amount=length),
                Fault(at, "kill_all"),
            )
        )
    if kind == "store":
        if lossy and rng.random() < 0.7:
            return Fault(at, "failover", amount=rng.choice((0.05, 0.5, 3.0)), skip=rng.choice((1, 5)))
        return rng.choice(
            (
                Fault(at, "store_away", amount=rng.choice((1.0, 6.0, 12.0, 30.0))),
                Fault(at, "store_slow", amount=rng.choice((5.0, 20.0))),
            )
        )
    if kind == "launch":
        return rng.choice(
            (
                Fault(at, "launch", "slow", rng.choice((10.0, 60.0, 320.0))),
                Fault(at, "launch", "fails"),
                Fault(at, "launch", "never"),
                Fault(at, "launch", "answer_lost"),
                Fault(at, "throttled", amount=rng.choice((5.0, 30.0))),
            )
        )
    # Somebody pushes a job just as a worker leaves: before it says so, or between that and its last claim.
    return Fault(at, "squeeze", rng.choice(("status", "turn")), rng.choice((0.05, 0.3, 2.0)))
