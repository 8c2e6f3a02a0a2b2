"""`muster pool what-if`: needs no server, prints what programs can read, and refuses with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app


def run(*words: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["pool", "what-if", *words])
    return done.exit_code, done.stdout, done.stderr


def test_a_trace_is_replayed_against_the_policies_asked_for(tmp_path: Path) -> None:
    trace = tmp_path / "claims.csv"
    trace.write_text("at,user\n" + "".join(f"{1793626200 + 3600 * n},u{n}\n" for n in range(10)))
    picture = tmp_path / "out" / "pool.svg"
    code, out, _ = run(
        "--trace", str(trace), "--policy", "fixed:0", "--policy", "fixed:1", "--policy", "adaptive",
        "--svg", str(picture), "--json",
    )  # fmt: skip
    assert code == 0
    none, one, adaptive = json.loads(out)
    assert (none["hit_rate"], none["usd"], none["p99_start_s"]) == (0, 0, 3.103)
    assert (one["hit_rate"], one["claims"], one["p99_start_s"]) == (1.0, 10, 0.332)
    assert adaptive["policy"] == "adaptive"
    assert picture.read_text().rstrip().endswith("</svg>")


def test_people_get_a_table_and_the_assumptions() -> None:
    code, out, words = run("--synthetic", "month", "--seed", "3", "--policy", "fixed:2")
    assert code == 0
    assert "fixed:2" in out
    assert "calendar: mon-fri 13:10-13:40 200" in words


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "--trace FILE or"),
        (("--synthetic", "month", "--policy", "magic"), "fixed:8 or"),
        (("--synthetic", "month", "--window", "noon"), "mon-fri"),
        (("--trace", "nowhere.csv"), "at,user"),
    ],
)
def test_what_cannot_be_replayed_is_a_usage_error(words: tuple[str, ...], reason: str) -> None:
    code, _, said = run(*words)
    assert code == 2
    assert reason in said
