"""`muster demo --json`: one object, every promise kept, every start and heal measured."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(240)
def test_the_demonstration_keeps_every_promise_and_measures_every_start() -> None:
    words = [sys.executable, "-m", "cli.main", "demo", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    assert done.returncode == 0, summary
    assert summary["promises_broken"] == []
    assert (summary["double_workers"], summary["commands_unaccounted"]) == (0, 0)
    assert (summary["warm_starts"] >= 8, summary["killed"]) == (True, 5)
    assert summary["warm_starts"] + summary["cold_starts"] == summary["users"]
    assert 0 < summary["warm_p50_ms"] < 1000
    assert 0 < summary["heal_p50_ms"] < 5000
    assert summary["orders_accepted"] == summary["orders_agreeing_with_the_book"] == 20 + 5 + 1
    assert summary["orders_executed_twice"] == 0
