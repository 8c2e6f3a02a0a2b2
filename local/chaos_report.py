"""What a chaos run did and saw, which promises that breaks, and a picture of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from muster import blueprint

#: One worker's acts and another's, after the store lost its data: until the old one's next beat.
BEAT_S = blueprint.MARK_BEAT.total_seconds()
#: The same as the broker sees it, where a connection also has to end: a beat, two timeouts of the store, a
#: retry and the flight (docs/explanation/guarantees.md, on true clocks).
SHARED_AFTER_LOSS_S = BEAT_S + 2 * 3 + 1 + 2


@dataclass
class Fault:
    """One injected fault. It strikes from `at_s` to `struck_s`: some take seconds, and are felt meanwhile."""

    at_s: float
    kind: str
    target: str = ""
    struck_s: float = 0.0
    healed_s: float | None = None  #: from `at_s` until all was well again; None: nobody felt it


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment, as it was seen from outside."""

    at: float
    wanted: int  #: users that should have a worker
    held: int  #: of these, those that were served
    api: bool  #: whether the API answered
    troubled: frozenset[str] = frozenset()  #: users that should be served and are not, or the reverse

    @property
    def well(self) -> bool:
        return self.api and not self.troubled


@dataclass
class Report:
    """What a chaos run did and saw. Times are seconds since its begin."""

    seed: int
    seconds: float = 0.0
    commands: int = 0
    commands_refused: int = 0
    kinds: list[str] = field(default_factory=list)  #: every kind of fault a run can inject
    faults: list[Fault] = field(default_factory=list)  #: those that struck
    missed: list[str] = field(default_factory=list)  #: those that found nothing to hit, and why
    samples: list[Sample] = field(default_factory=list)  #: moments at equal distances
    double_workers: int = 0
    overlaps_after_loss: list[float] = field(default_factory=list)
    double_sessions: int = 0  #: times the broker had two connections of a user
    shared_after_loss: list[float] = field(default_factory=list)
    orders: int = 0
    orders_refused: int = 0
    orders_agreed: int = 0  #: final, and as the broker's book has them
    orders_unverified: int = 0  #: of these, still waiting for a check
    orders_sent_twice: int = 0  #: and refused by the broker the second time
    orders_executed_twice: int = 0
    orders_wrong: list[str] = field(default_factory=list)
    order_lives: list[tuple[float, float]] = field(default_factory=list)  #: (accepted, verified)
    lost_commands: list[str] = field(default_factory=list)
    processes_left: list[str] = field(default_factory=list)

    @property
    def broken(self) -> list[str]:
        """The promises that were not kept."""
        found = []
        if self.double_workers:
            found.append(f"{self.double_workers} times two workers acted at once")
        if self.double_sessions:
            found.append(f"{self.double_sessions} times the broker had two connections of one user")
        if self.lost_commands:
            found.append(f"users that did not end as last asked: {', '.join(self.lost_commands)}")
        if any(seconds > BEAT_S for seconds in self.overlaps_after_loss):
            found.append("after a loss of data two workers overlapped for longer than one beat")
        if any(seconds > SHARED_AFTER_LOSS_S for seconds in self.shared_after_loss):
            found.append("after a loss of data the broker had two connections for longer than the bound")
        if self.orders_executed_twice:
            found.append(f"{self.orders_executed_twice} orders were executed twice")
        if self.orders_wrong:
            found.append(f"orders without one truth: {'; '.join(self.orders_wrong)}")
        if self.processes_left:
            found.append(f"processes left running: {'; '.join(self.processes_left)}")
        return found

    @property
    def struck(self) -> dict[str, int]:
        """How often each kind struck, 0 included."""
        kinds = {*self.kinds, *(fault.kind for fault in self.faults)}
        return {kind: sum(fault.kind == kind for fault in self.faults) for kind in sorted(kinds)}

    @property
    def left_out(self) -> list[str]:
        """Kinds that never struck: this run says nothing about them."""
        return [kind for kind, times in self.struck.items() if not times]

    @property
    def felt(self) -> dict[str, int]:
        """How often each kind that struck was felt, 0 included."""
        return {
            kind: sum(fault.kind == kind and fault.healed_s is not None for fault in self.faults)
            for kind, times in self.struck.items()
            if times
        }

    def summary(self) -> dict[str, Any]:
        heals = sorted(fault.healed_s for fault in self.faults if fault.healed_s is not None)
        held = sum(one.held for one in self.samples)
        wanted = sum(one.wanted for one in self.samples)
        answered = sum(one.api for one in self.samples)
        cuts = (
            statistics.quantiles(heals, n=20, method="inclusive") if len(heals) > 1 else [*heals, *heals] * 10
        )
        return {
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "commands": self.commands,
            "commands_refused": self.commands_refused,
            "faults": self.struck,
            "faults_left_out": self.left_out,
            "faults_missed": self.missed,
            "faults_felt": self.felt,
            "load_held": round(held / wanted, 3) if wanted else None,
            "api_answered": round(answered / len(self.samples), 3) if self.samples else None,
            "heals": len(heals),
            "heal_p50_s": round(cuts[9], 2) if heals else None,
            "heal_p95_s": round(cuts[18], 2) if heals else None,
            "heal_max_s": round(heals[-1], 2) if heals else None,
            "double_workers": self.double_workers,
            "overlaps_after_loss_s": [round(seconds, 2) for seconds in self.overlaps_after_loss],
            "double_sessions": self.double_sessions,
            "shared_after_loss_s": [round(seconds, 2) for seconds in self.shared_after_loss],
            "orders": self.orders,
            "orders_refused": self.orders_refused,
            "orders_agreed": self.orders_agreed,
            "orders_unverified": self.orders_unverified,
            "orders_sent_twice": self.orders_sent_twice,
            "orders_executed_twice": self.orders_executed_twice,
            "commands_lost": self.lost_commands,
            "promises_broken": self.broken,
        }


def plot(report: Report, path: Path) -> None:
    """Wanted and served users, accepted and verified orders over time, with the faults as lines."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (workers, orders) = pyplot.subplots(2, 1, figsize=(10, 6), sharex=True)
    times = [one.at for one in report.samples]
    workers.step(times, [one.wanted for one in report.samples], label="wanted", color="0.6")
    workers.step(times, [one.held for one in report.samples], label="served", color="tab:blue")
    silent, top = (
        [not one.api for one in report.samples],
        max((one.wanted for one in report.samples), default=1),
    )
    workers.fill_between(times, 0, top, where=silent, step="post", color="0.9", label="no answer of the API")
    for name, colour, moments in (
        ("accepted", "0.6", sorted(accepted for accepted, _ in report.order_lives)),
        ("as in the broker's book", "tab:blue", sorted(checked for _, checked in report.order_lives)),
    ):
        orders.step(moments, range(1, len(moments) + 1), where="post", label=name, color=colour)
    kinds = sorted({fault.kind for fault in report.faults})
    for number, kind in enumerate(kinds):
        marks = [fault.at_s for fault in report.faults if fault.kind == kind]
        label = f"{kind} ({report.felt[kind]} of {len(marks)} felt)"
        workers.vlines(marks, 0, 0.8, colors=f"C{number + 1}", label=label, linewidth=1)
    workers.set_ylabel("workers")
    orders.set_ylabel("orders")
    orders.set_xlabel("seconds")
    orders.legend(fontsize=7, loc="upper left")
    workers.legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.02))
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
