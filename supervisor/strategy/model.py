"""The words of the strategy: what is fetched, what is scored, what is decided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Regime(StrEnum):
    """How the price has been behaving; it sets how much capital may be exposed."""

    CALM = "calm"  #: moves stay inside a narrow band: pools earn fees with little loss
    NORMAL = "normal"  #: ordinary movement
    WILD = "wild"  #: moves far wider than usual: a position loses more than its fees bring


@dataclass(frozen=True, slots=True)
class Pool:
    """One liquidity pool as the market shows it now."""

    id: str
    liquidity: float  #: in quote currency
    volume_24h: float
    fee: float  #: share of each trade, e.g. 0.003


@dataclass(frozen=True, slots=True)
class Score:
    """What a pool is expected to bring, in a year, after the loss that price movement causes."""

    pool: str
    fee_apr: float
    loss_apr: float
    net_apr: float


@dataclass(frozen=True, slots=True)
class Analysis:
    """The market as the decision sees it. `forces` are the figures the regime was read from."""

    price: float
    regime: Regime
    forces: dict[str, float]
    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True)
class Params:
    """What an entry in workers.yml may set."""

    capital: float = 100_000.0
    max_weight: float = 0.4  #: most of the capital in one pool
    min_apr: float = 0.02  #: a pool below this is not worth its gas
    min_move: float = 0.05  #: a weight that would change by less is left alone


class Kind(StrEnum):
    BURN = "burn"  #: close a position
    REBALANCE = "rebalance"  #: make it smaller or larger
    MINT = "mint"  #: open a position


@dataclass(frozen=True, slots=True)
class Change:
    """One position change, in quote currency."""

    kind: Kind
    pool: str
    before: float
    after: float
