"""workers.yml is taken whole or not at all, and the refusal says where and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.errors import Refused
from supervisor import config
from supervisor.timings import Timings

STRATEGY = "supervisor.strategy.pair:PairStrategy"


def write(folder: Path, text: str) -> Path:
    path = folder / "workers.yml"
    path.write_text(text)
    return path


def test_an_entry_overrides_the_defaults_of_the_file(tmp_path):
    specs = config.load(
        write(
            tmp_path,
            f"strategy: {STRATEGY}\nsettings: {{market: here, top: 3}}\n"
            "workers:\n- key: A-B\n- key: C-D\n  interval_sec: 60\n  settings: {top: 5}\n",
        )
    )
    assert specs["A-B"].interval_sec == 900
    assert specs["A-B"].settings == {"market": "here", "top": 3}
    assert specs["C-D"].interval_sec == 60
    assert specs["C-D"].settings == {"market": "here", "top": 5}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("workers: [", "cannot be read"),
        ("", "valid"),
        ("workers:\n- key: A\n", "A has no strategy"),
        (f"strategy: {STRATEGY}\nworkers:\n- key: A\n- key: A\n", "A is listed twice"),
        (f"strategy: {STRATEGY}\nworkers:\n- key: ../etc\n", "workers.0.key"),
        (f"strategy: {STRATEGY}\nworkers:\n- key: A\n  interval_sec: 0\n", "workers.0.interval_sec"),
        (f"strategy: {STRATEGY}\nworkers:\n- key: A\n  intervall: 5\n", "workers.0.intervall"),
        ("strategy: no.such.module:thing\nworkers: []\n", "no module 'no.such.module'"),
        ("strategy: supervisor.config\nworkers: []\n", "package.module:name"),
    ],
)
def test_a_broken_file_is_refused_with_its_place_and_reason(tmp_path, text, reason):
    path = write(tmp_path, text)
    with pytest.raises(Refused) as refused:
        config.load(path)
    assert reason in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(Refused, match="cannot be read"):
        config.load(tmp_path / "nowhere.yml")


def test_the_shipped_example_has_three_pairs():
    specs = config.load(Path(__file__).parents[2] / "examples" / "workers.yml")
    assert list(specs) == ["USDC-USDT", "WETH-USDC", "WBTC-USDC"]


def test_the_defaults_are_the_numbers_of_the_design():
    timings = Timings()
    seconds = {name: getattr(timings, name).total_seconds() for name in Timings.__slots__}
    assert seconds == {
        "supervisor_lock_ttl": 60,
        "health_every": 10,
        "silent_after": 60,
        "backoff_first": 20,
        "backoff_max": 300,
        "shutdown_grace": 30,
        "worker_lock_ttl": 900,
        "heartbeat_every": 15,
        "heartbeat_ttl": 45,
        "state_ttl": 60,
        "restarting_ttl": 60,
    }


def test_single_timings_can_be_shortened_and_a_typo_is_refused():
    assert (
        Timings.from_environment({"MUSTER_TIMINGS": "heartbeat_every=0.5"}).heartbeat_every.total_seconds()
        == 0.5
    )
    with pytest.raises(Refused, match="heart_beat"):
        Timings.from_environment({"MUSTER_TIMINGS": "heart_beat=1"})
