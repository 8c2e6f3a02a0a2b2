"""The backtest processor: numbers checked by hand, no look ahead, and the same result after a resume."""

from __future__ import annotations

import pytest

from muster.clock import FakeClock
from muster.errors import BadCommand
from muster.jobs import JobStatus, connect
from worker import jobs_backtest
from worker.jobs_context import Context, JobCancelled, WorkerLeaving
from worker.jobs_slot import Slot


@pytest.fixture
def pool():
    return connect("memory://", FakeClock()).work.pool("p")


@pytest.fixture
def slot():
    page = Slot.create()
    yield page
    page.close()


@pytest.fixture
def run(pool, slot, tmp_path):
    """Push, claim and run one backtest; its result."""

    def once(spec):
        pool.push(spec, kind="backtest")
        job = pool.claim("w")
        return jobs_backtest.run(job, Context(job, pool, slot, tmp_path))

    return once


def test_a_breakout_buys_the_close_after_the_signal_and_pays_the_fee(run):
    close = [10, 10, 10, 12, 16, 16, 8, 4]
    result = run(
        {"candles": {"close": close}, "strategy": "breakout", "window": 3, "cash": 1000, "fee": 0.01}
    )
    # 12 breaks 10: bought at 16 with 1 % off; 8 breaks 12 downwards: sold at 4 with 1 % off.
    assert result["trades"] == 2
    assert result["final_equity"] == pytest.approx(1000 * 0.99 / 16 * 4 * 0.99)
    assert result["max_drawdown"] == pytest.approx(1 - result["final_equity"] / 1000)
    assert result["equity_curve"][:4] == [1000, 1000, 1000, 1000]


def test_the_moving_average_is_in_the_market_only_while_the_fast_one_leads(run):
    close = [10, 10, 10, 20, 40, 80, 40, 20, 10, 10]
    result = run({"candles": {"close": close}, "strategy": "moving-average", "fast": 1, "slow": 2, "fee": 0})
    # 20 > mean(10, 20): bought at 40; 40 < mean(80, 40): sold at 20.
    assert result["trades"] == 2
    assert result["final_equity"] == pytest.approx(10_000 / 40 * 20)


def test_no_tick_knows_its_own_future(run, tmp_path):
    spec = {"random": {"ticks": 400, "seed": 3}, "strategy": "breakout", "window": 10}
    whole = run(spec)["equity_curve"]
    import polars as pl

    (first,) = tmp_path.glob("p/*/equity.csv")
    close = pl.read_csv(first)["close"].to_list()
    cut = run({"candles": {"close": close[:300]}, "strategy": "breakout", "window": 10})["equity_curve"]
    assert cut == whole[:300]


def test_the_result_folder_has_curve_and_plots(run, tmp_path):
    result = run({"random": {"ticks": 50}, "fast": 2, "slow": 5})
    folder = tmp_path / "p"
    names = sorted(path.name for path in folder.glob("*/*"))
    assert names == ["equity.csv", "equity.png", "equity.svg"]
    assert next(folder.glob("*/equity.png")).read_bytes().startswith(b"\x89PNG")
    assert result["plot"].endswith("equity.png")
    assert result["ticks"] == 50


def test_a_resumed_run_gives_the_same_numbers(run, pool, slot, tmp_path):
    spec = {"random": {"ticks": 1000, "seed": 7}, "checkpoint_every": 100}
    whole = run(spec)
    job_id = pool.push(spec, kind="backtest")
    job = pool.claim("w")

    class LeavesAtHalf(Context):
        def check(self):
            if pool.get(job_id).checkpoint["tick"] == 500:
                raise WorkerLeaving("half way")

    with pytest.raises(WorkerLeaving):
        jobs_backtest.run(job, LeavesAtHalf(job, pool, slot, tmp_path))
    assert pool.get(job_id).progress["fraction"] == 0.5
    assert pool.give_back(job) is JobStatus.PENDING
    again = pool.claim("w2")
    resumed = jobs_backtest.run(again, Context(again, pool, slot, tmp_path))
    assert resumed["resumed_at"] == 500
    same = ("final_equity", "sharpe", "max_drawdown", "trades", "equity_curve", "total_return")
    assert {key: resumed[key] for key in same} == {key: whole[key] for key in same}


def test_a_cancelled_backtest_stops_at_the_next_checkpoint(pool, slot, tmp_path):
    pool.push({"random": {"ticks": 1000}, "checkpoint_every": 100}, kind="backtest")
    job = pool.claim("w")
    slot.cancel(job.id)
    with pytest.raises(JobCancelled):
        jobs_backtest.run(job, Context(job, pool, slot, tmp_path))
    assert pool.get(job.id).checkpoint["tick"] == 100


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({}, "needs candles"),
        ({"candles": {"close": [1]}}, "two candles"),
        ({"random": {"ticks": 10}, "strategy": "hope"}, "moving-average or breakout"),
        ({"random": {"ticks": 10}, "fast": 9, "slow": 3}, "fast < slow"),
    ],
)
def test_bad_input_says_what_is_wrong(run, spec, hint):
    with pytest.raises(BadCommand, match=hint):
        run(spec)
