"""The StartLatency line of a worker: what was waited for, and no more."""

from __future__ import annotations

import json
import time

import pytest

from muster.model import Assignment, Cause, Via
from muster.traces import NO_SPANS
from worker import boot

_NOW = 1_700_000_000.0


@pytest.mark.parametrize(
    ("cause", "told_ms", "via"),
    [(Cause.START, 3_600_000, "warm"), (Cause.RESTART, 3_600_000, "warm"), (Cause.REPAIR, 250, "repair")],
)
def test_a_repair_counts_from_its_own_begin_and_not_from_the_owners_command(
    cause: Cause, told_ms: int, via: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: _NOW)
    now_ms = round(_NOW * 1000)
    given = Assignment("u1", now_ms - 250, Via.WARM, cause, now_ms - 3_600_000, "c1")
    boot._tell_ready(given, boot.Moments(woken=_NOW), NO_SPANS)
    line = json.loads(capsys.readouterr().out)
    assert (line["StartLatency"], line["via"]) == (told_ms, via)
