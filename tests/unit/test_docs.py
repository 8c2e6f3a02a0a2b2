"""The documentation holds together: links lead somewhere, and the commands it names exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from api.fleet import Fleet
from api.routes import health
from cli.main import COMMANDS
from muster.store import Store
from tests.api_stand import settings_with_queues, sqs_client

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
_LINK = re.compile(r"""\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)\"""")
_FENCE = re.compile(r"^```(\S*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
#: A block that begins like this is a command, and must be marked as one so that it is run.
_COMMAND = re.compile(r"^(muster|make|aws|npx|curl|python|kill|export|git|pip|docker) ", re.MULTILINE)


def prose_of(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """The headings' addresses, as GitHub and the site make them."""
    heads = re.findall(r"^#+ (.*)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("name", NAMES)
def test_every_link_leads_somewhere(name: str) -> None:
    page = ROOT / name
    for link in (words or picture for words, picture in _LINK.findall(prose_of(page))):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors_of(target), f"{name} links to {link}, which has no such heading"


@pytest.mark.parametrize("name", NAMES)
def test_every_block_of_commands_is_marked_to_be_run(name: str) -> None:
    for kind, body in _FENCE.findall((ROOT / name).read_text(encoding="utf-8")):
        if kind in ("", "bash", "shell", "console"):
            assert not _COMMAND.search(body), f"{name}: mark as sh, so that it is run:\n{body}"


def inline_commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for words in re.findall(r"`((?:muster|make) [^`]+)`", prose_of(page)):
            yield page.relative_to(ROOT).as_posix(), words


@pytest.mark.parametrize(("name", "words"), sorted(set(inline_commands())))
def test_a_command_named_in_a_sentence_exists(name: str, words: str) -> None:
    if words.startswith("make "):
        verb = words.split()[1]
        assert re.search(rf"^{re.escape(verb)}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
        return
    first, *rest = words.removeprefix("muster ").split()
    if first in ("COMMAND", "--install-completion", "--help"):
        return
    command: Any = next((one for one in COMMANDS if one.name == first), None)
    assert command is not None, f"{name}: there is no 'muster {first}'"
    command = command.load()
    if rest and (below := getattr(command, "commands", {})) and rest[0] in below:
        command = below[rest.pop(0)]
    known = {word for parameter in command.params for word in (*parameter.opts, *parameter.secondary_opts)}
    for word in re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*|-[a-z](?![a-z]))", " ".join(rest)):
        assert word in known | {"--help"}, f"{name}: 'muster {first}' knows no {word} (in `{words}`)"


def test_the_site_builds_and_every_page_is_in_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for page in ROOT.glob("docs/**/*.md"):
        built = tmp_path / page.relative_to(ROOT / "docs").with_suffix(".html")
        built = built.with_name("index.html") if page.name == "README.md" else built
        assert built.exists(), built
    assert (tmp_path / "ARCHITECTURE.html").exists()


def test_the_dashboard_asks_only_for_metrics_that_exist(valkey: Any) -> None:
    board = json.loads((ROOT / "examples/monitoring/grafana.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\bmuster_[a-z_]+", target["expr"])
    }
    with mock_aws():
        sqs = sqs_client()
        text = "\n".join(health._lines(Fleet(Store(valkey), sqs, settings_with_queues(sqs))))
    given = set(re.findall(r"# TYPE (\w+)", text))
    assert asked
    assert asked <= given


def test_the_figures_of_the_readme_are_those_of_the_last_bench_and_of_the_price_list() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    part = readme[readme.index("## How fast") : readme.index("## Instead of what")]
    printed = (ROOT / "bench/results/latest.md").read_text(encoding="utf-8")
    measured = re.findall(r"\| ([\d.,]+) ", part) + re.findall(r"([\d,]+) (?:a second|in tens)", part)
    assert len(measured) >= 9
    for figure in measured:
        assert re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d.])", printed), f"no bench printed {figure}"
    costs = (ROOT / "docs/explanation/costs.md").read_text(encoding="utf-8")
    for figure in re.findall(r"([\d,]+) USD", part):
        assert figure in costs, f"the page of the costs does not have {figure}"
