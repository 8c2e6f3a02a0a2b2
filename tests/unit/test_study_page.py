"""The capacity study: the same seed gives the same figures, and the page about scale has no other ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from cli.study import study as command
from sim.study import markdown
from sim.study.plots import draw
from sim.study.report import Run, study

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "scale.md"
BLOCK = re.compile(
    r"<!-- begin: muster sim study --users (\d+) --seed (\d+) -->\n(.*)\n<!-- end -->", re.DOTALL
)


@pytest.fixture(scope="module")
def page_run() -> Run:
    block = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert block, "the page does not name the command of its figures"
    return study(int(block[1]), int(block[2]))


def test_the_page_carries_exactly_what_its_command_prints(page_run: Run) -> None:
    block = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert block
    assert block[3] == markdown.text(page_run.study), (
        "run the command that the page names and put it in again"
    )


def test_every_number_in_the_pages_words_is_one_the_command_printed(page_run: Run) -> None:
    words = BLOCK.sub("", PAGE.read_text(encoding="utf-8"))
    words = re.sub(r"```.*?```|p99|1 in 100|EC2", "", words, flags=re.DOTALL)
    number = re.compile(r"\d[\d,]*(?:\.\d+)?")
    printed = set(number.findall(markdown.text(page_run.study)))
    told = {found.rstrip(",") for found in number.findall(words)}
    assert len(told) > 15
    assert told <= printed, f"not printed by the command: {sorted(told - printed)}"


def test_the_pages_conclusions_follow_from_its_figures(page_run: Run) -> None:
    made = page_run.study
    assert (made.advised, made.fewest["calendar"], made.fewest["adaptive"]) == (10, 5, 24)
    assert (made.binds["calendar"], made.binds["adaptive"]) == ("ecs-read", "ecs-mutate")
    assert made.row("calendar, 20 % short", 5).out_of_patience == 127_740
    assert made.row("calendar, 20 % short", 10).out_of_patience == 0
    assert round(made.row("adaptive", 10).p99_s) == round(made.row("none", 10).p99_s) == 214
    at_ten = made.row("calendar", 10)
    assert (at_ten.pool_usd, at_ten.total_usd, at_ten.pool_peak) == (285, 19_860, 157_690)


def test_the_command_prints_one_json_object_and_writes_its_pictures_twice_alike(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(command)
    words = ["--users", "20000", "--seed", "3", "--json"]
    first = CliRunner().invoke(app, [*words, "--plots", str(tmp_path / "a")])
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert (told["users"], told["seed"]) == (20_000, 3)
    assert {row["policy"] for row in told["rows"]} == told["fewest"].keys()
    again = study(20_000, 3)
    assert json.loads(json.dumps(again.study.to_dict())) == told
    assert json.loads(json.dumps(study(20_000, 4).study.to_dict()))["rows"] != told["rows"]
    names = {path.name for path in draw(again, again.study.advised or 32, tmp_path / "b")}
    assert names == {
        f"scale-{what}.{ending}" for what in ("latency", "open", "quotas") for ending in ("svg", "png")
    }
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes(), name
