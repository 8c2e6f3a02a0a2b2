"""`muster demo --json`: one object, every promise kept, warm far ahead of cold."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(240)
def test_the_demonstration_keeps_every_promise_and_warm_is_five_times_faster_than_cold() -> None:
    words = [sys.executable, "-m", "cli.main", "demo", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    (line,) = done.stdout.splitlines()
    summary = json.loads(line)
    assert done.returncode == 0, summary
    assert summary["promises_broken"] == []
    assert (summary["double_workers"], summary["commands_unaccounted"]) == (0, 0)
    assert (summary["warm_starts"] >= 8, summary["killed"]) == (True, 5)
    assert summary["warm_p50_ms"] * 5 <= summary["cold_p50_ms"]
