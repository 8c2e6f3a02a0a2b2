"""How much of the load a chaos run held, and how long each fault was felt: judged from outside, at its end.

A user is served while its worker leaves acts in its journal and the broker has a connection of it. Whether
the API answers is a part of being well, but no witness for anybody else: it is away in just the moments that
count.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from local.chaos_report import Fault, Sample

#: Seconds from when to when.
Span = tuple[float, float]

#: Ten moments a second are looked at.
EVERY_S = 0.1
#: A worker acts five times a second; one that has not for this long is frozen, starved or gone.
SILENCE_S = 1.0
#: A fault that nobody feels until so long after its strike was over did no harm.
SHOWS_WITHIN_S = 3.0
#: What a user misses so soon after a command of its own may be that command's doing, and is no fault's.
COMMAND_S = 5.0


@dataclass
class Witness:
    """What was seen from outside while the run went on. Times are seconds since its begin."""

    wishes: list[tuple[float, str, bool | None]] = field(default_factory=list)  #: None: nobody knows
    commands: list[tuple[float, float, str]] = field(default_factory=list)  #: (asked, answered, user)
    answers: list[tuple[float, bool]] = field(default_factory=list)  #: when the API was asked; did it answer

    def samples(self, served: Mapping[str, Sequence[Span]], until: float) -> list[Sample]:
        """One sample per moment from the first question to the API until then."""
        began = self.answers[0][0] if self.answers else until
        return [
            self._sample(began + number * EVERY_S, served)
            for number in range(math.ceil((until - began) / EVERY_S))
        ]

    def _sample(self, at: float, served: Mapping[str, Sequence[Span]]) -> Sample:
        wanted = {user: want for asked, user, want in self.wishes if asked <= at}
        serves = {user: any(a <= at <= z for a, z in served.get(user, ())) for user in wanted}
        return Sample(
            at=round(at, 2),
            wanted=sum(want is True for want in wanted.values()),
            held=sum(want is True and serves[user] for user, want in wanted.items()),
            api=self._answered(at),
            troubled=frozenset(
                user for user, want in wanted.items() if want is not None and want is not serves[user]
            ),
        )

    def _answered(self, at: float) -> bool:
        """What the question that was open then, or the last before it, came to."""
        last = bisect_right(self.answers, (at, True)) - 1
        return last >= 0 and self.answers[last][1]

    def told(self, user: str, at: float) -> bool:
        """Whether a command of this user was under way, or just over."""
        return any(
            whose == user and asked <= at <= answered + COMMAND_S for asked, answered, whose in self.commands
        )


def served(
    acts: Mapping[str, Sequence[Span]],
    connections: Mapping[str, Sequence[Span]],
    broker_killed: Sequence[float],
) -> dict[str, list[Span]]:
    """When each user was served: acts and a connection at the same time. A killed broker writes down the end
    of its connections only when it is back: they ended with it."""
    found: dict[str, list[Span]] = defaultdict(list)
    for user, acting in acts.items():
        for opened, closed in connections.get(user, ()):
            ended = min([closed, *(at for at in broker_killed if opened < at < closed)])
            found[user] += [
                (max(first, opened), min(last, ended))
                for first, last in acting
                if max(first, opened) < min(last, ended)
            ]
    return dict(found)


def measure_heals(faults: Sequence[Fault], samples: Sequence[Sample], witness: Witness) -> None:
    """Which faults were felt, and how long after its begin all was well again.

    Felt: from the begin of the strike until a little after its end a user that was well is not any more, and
    not by its own command, or the API falls silent. Healed: every user is as wanted and the API answers.
    """
    for fault in faults:
        before = next((one for one in reversed(samples) if one.at <= fault.at_s), None)
        felt = next(
            (
                one
                for one in samples
                if fault.at_s <= one.at <= fault.struck_s + SHOWS_WITHIN_S
                and _felt(fault, before, one, witness)
            ),
            None,
        )
        if felt is not None:
            healed = next((one.at for one in samples if one.at > felt.at and one.well), samples[-1].at)
            fault.healed_s = healed - fault.at_s


def _felt(fault: Fault, before: Sample | None, now: Sample, witness: Witness) -> bool:
    if not now.api and (before is None or before.api):
        return True
    # A worker that was hit was ready just before, but its last act may be older than the strike.
    hit = fault.target.partition(" ")[0]
    was = before.troubled if before else frozenset()
    return any(user == hit or not (user in was or witness.told(user, now.at)) for user in now.troubled)
