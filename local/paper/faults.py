"""Everything that can go wrong at a broker, as knobs.

A share is between 0 and 1. Whether it strikes is decided by the seed and by what it strikes (an order's
client id, an account's n-th request), never by a random generator, so a run can be repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Faults:
    """The knobs, at rest. Durations are in seconds."""

    latency_s: float = 0.0  #: every answer waits this long
    rate_limited: float = 0.0  #: share of requests answered with 429
    retry_after_s: int = 1  #: what such an answer asks for
    server_error: float = 0.0  #: share of requests answered with 500, before anything was done
    echo_headers: bool = False  #: ... whose words quote what was sent, as a careless proxy does
    lost_request: float = 0.0  #: share of requests whose connection is cut before anything was done
    lost_answer: float = 0.0  #: share of requests whose connection is cut after everything was done
    lost_stream: float = 0.0  #: share of updates that cut their stream instead of being delivered
    one_stream: bool = True  #: a key has one stream; a second one is refused
    slot_hold_s: float = 0.0  #: a stream that ended without goodbye holds its slot this long
    fill_after_s: float = 0.02  #: an order that can be filled is filled after this
    late: float = 0.0  #: share of orders filled `late_by_s` later than that
    late_by_s: float = 2.0
    partial: float = 0.0  #: share of orders filled in three parts
    rejected: float = 0.0  #: share of orders accepted first and rejected then
    expire_after_s: float = 0.0  #: day orders end after this; 0 is never
    duplicate: float = 0.0  #: share of updates sent twice
    out_of_order: float = 0.0  #: share of updates sent `behind_s` late, so that younger ones overtake
    behind_s: float = 0.3
    clock_skew_s: float = 0.0  #: how far the broker's clock is ahead

    def changed(self, knobs: Mapping[str, Any]) -> Faults:
        """With these knobs turned. Raises `ValueError` naming the knob that does not exist or fit."""
        known = {f.name: type(getattr(self, f.name)) for f in fields(self)}
        turned: dict[str, Any] = {}
        for name, value in knobs.items():
            if name not in known:
                raise ValueError(f"no fault {name!r}; there are {', '.join(known)}")
            fits = isinstance(value, bool) if known[name] is bool else isinstance(value, int | float)
            if not fits or (isinstance(value, bool) and known[name] is not bool):
                raise ValueError(f"fault {name} must be a {known[name].__name__}, not {value!r}")
            if name != "clock_skew_s" and value < 0:
                raise ValueError(f"fault {name} must not be negative")
            turned[name] = known[name](value)
        return replace(self, **turned)

    @classmethod
    def parse(cls, words: Iterable[str]) -> Faults:
        """From `name=value` words of a command line."""
        knobs: dict[str, Any] = {}
        for word in words:
            name, _, value = word.partition("=")
            if value in ("true", "false"):
                knobs[name] = value == "true"
                continue
            try:
                knobs[name] = float(value)
            except ValueError:
                raise ValueError(f"fault {word!r} must look like name=number or name=true") from None
        return cls().changed(knobs)
