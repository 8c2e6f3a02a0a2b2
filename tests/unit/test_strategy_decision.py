"""The decision is pure: these are its rules."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.errors import LostLease
from supervisor.strategy.allocate import EXPOSURE, allocate
from supervisor.strategy.analyse import analyse
from supervisor.strategy.execute import execute, plan
from supervisor.strategy.model import Analysis, Change, Kind, Params, Pool, Regime, Score

PARAMS = Params()


def market(regime: Regime = Regime.CALM, **aprs: float) -> Analysis:
    scores = tuple(Score(pool, apr, 0.0, apr) for pool, apr in aprs.items())
    return Analysis(price=1.0, regime=regime, forces={}, scores=scores)


def candles(*closes: float) -> pl.DataFrame:
    return pl.DataFrame({"close": closes})


def test_capital_goes_to_pools_in_proportion_to_what_they_bring():
    assert allocate(market(a=0.3, b=0.1, c=0.2, d=0.4), {}, PARAMS) == pytest.approx(
        {"a": 0.3, "b": 0.1, "c": 0.2, "d": 0.4}
    )


def test_no_pool_exceeds_its_cap_and_what_it_leaves_goes_to_the_others():
    weights = allocate(market(a=0.8, b=0.1, c=0.1), {}, PARAMS)
    assert weights == pytest.approx({"a": 0.4, "b": 0.3, "c": 0.3})


def test_a_pool_that_is_not_worth_its_gas_gets_nothing():
    assert "b" not in allocate(market(a=0.3, b=0.019), {}, PARAMS)


def test_a_wild_market_means_cash():
    assert allocate(market(Regime.WILD, a=0.9, b=0.9), {"a": 0.4}, PARAMS) == {}


def test_a_small_move_is_not_made():
    held = {"a": 0.36, "b": 0.38}
    assert allocate(market(Regime.CALM, a=0.3, b=0.3), held, PARAMS) == held


def test_a_large_move_is_made():
    assert allocate(market(a=0.3, b=0.3), {"a": 0.1}, PARAMS) == pytest.approx({"a": 0.4, "b": 0.4})


weights = st.dictionaries(st.sampled_from("abcdef"), st.floats(0.001, 0.4), max_size=6)


@given(
    regime=st.sampled_from(Regime),
    aprs=st.dictionaries(st.sampled_from("abcdef"), st.floats(-1, 5), max_size=6),
    held=weights,
)
def test_a_decision_never_exceeds_exposure_or_cap_and_repeats_itself(regime, aprs, held):
    analysis = market(regime, **aprs)
    decided = allocate(analysis, held, PARAMS)
    assert sum(decided.values()) <= EXPOSURE[regime] + 1e-6
    assert all(0 < weight <= PARAMS.max_weight + 1e-9 for weight in decided.values())
    assert all(aprs[pool] >= PARAMS.min_apr for pool in decided)
    again = allocate(analysis, decided, PARAMS)
    assert again == pytest.approx(decided), "a decision that was carried out is left alone"


@given(before=weights, after=weights)
def test_the_plan_leads_from_the_old_weights_to_the_new_and_frees_capital_first(before, after):
    changes = plan(before, after, 1000.0)
    positions = dict(before)
    execute(changes, positions, 1000.0, lambda: None)
    assert positions == pytest.approx(after)
    moves = [change.after - change.before for change in changes]
    assert moves == sorted(moves)


def test_the_kinds_of_change():
    kinds = {
        c.pool: c.kind
        for c in plan({"old": 0.2, "kept": 0.3, "moved": 0.1}, {"kept": 0.3, "moved": 0.2, "new": 0.1}, 1)
    }
    assert kinds == {"old": Kind.BURN, "moved": Kind.REBALANCE, "new": Kind.MINT}


def test_nothing_is_executed_without_the_lock():
    def refuse() -> None:
        raise LostLease("gone")

    positions = {"a": 0.3}
    with pytest.raises(LostLease):
        execute([Change(Kind.BURN, "a", 30, 0)], positions, 100, refuse)
    assert positions == {"a": 0.3}


def test_the_regime_follows_the_volatility():
    assert analyse(candles(1.0, 1.00001, 1.0, 1.00001), []).regime is Regime.CALM
    assert analyse(candles(100.0, 100.3, 100.0, 100.3), []).regime is Regime.NORMAL
    assert analyse(candles(100.0, 103.0, 100.0, 103.0), []).regime is Regime.WILD


def test_a_score_is_fees_minus_the_loss_that_movement_causes_and_the_best_comes_first():
    pools = [Pool("thin", 1_000_000, 10_000, 0.003), Pool("busy", 1_000_000, 100_000, 0.003)]
    analysis = analyse(candles(100.0, 100.3, 100.0, 100.3), pools)
    assert [score.pool for score in analysis.scores] == ["busy", "thin"]
    busy = analysis.scores[0]
    assert busy.fee_apr == pytest.approx(0.1095)
    assert busy.net_apr == pytest.approx(busy.fee_apr - analysis.forces["volatility"] ** 2 / 8)
