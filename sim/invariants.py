"""What must hold, whatever happens: the table of contents. A later part appends its own invariants here."""

from __future__ import annotations

from sim.audit import Invariant
from sim.liveness import (
    Accounted,
    Budget,
    NoOrphans,
    NoSurprise,
    OrphansProven,
    PoolSize,
    Quiet,
    Whole,
)
from sim.order_rules import OneSession, OrderAsked, OrderOnce, OrderTruth, OrderUnderLease
from sim.safety import (
    BrokerOrder,
    ClaimsSettled,
    EpochsRise,
    FencedStops,
    MarkHolder,
    NobodyLiveKilled,
    OneActor,
    OneWorkerPerEpoch,
    StopsHold,
)

INVARIANTS: list[type[Invariant]] = [
    OneActor,
    BrokerOrder,
    EpochsRise,
    OneWorkerPerEpoch,
    StopsHold,
    FencedStops,
    MarkHolder,
    PoolSize,
    ClaimsSettled,
    NobodyLiveKilled,
    Accounted,
    Whole,
    NoOrphans,
    OrphansProven,
    Budget,
    Quiet,
    NoSurprise,
    OrderOnce,
    OrderAsked,
    OrderUnderLease,
    OrderTruth,
    OneSession,
]
