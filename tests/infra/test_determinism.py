"""The same code gives the same templates; other application code changes only hashes."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.infra.synthesis import Synth, copy_sources, synthesise

HASH = re.compile(r"[0-9a-f]{64}")


@pytest.fixture(scope="module")
def again(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Synth]:
    """`dev` from a second copy of the same code, and from a third with a changed comment."""
    folder = tmp_path_factory.mktemp("again")
    same = copy_sources(folder / "same", checkout)
    changed = copy_sources(folder / "changed", checkout)
    with (changed / "muster" / "clock.py").open("a") as code:
        code.write("# a comment more\n")
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda copy: synthesise(copy, "dev", folder / f"{copy.name}-out"), (same, changed))
    return dict(zip(("same", "changed"), made, strict=True))


def test_the_same_code_gives_the_same_templates_from_any_folder(dev: Synth, again: dict[str, Synth]) -> None:
    assert again["same"].templates == dev.templates
    assert len(dev.templates) == 7


def test_changed_application_code_changes_only_hashes(dev: Synth, again: dict[str, Synth]) -> None:
    before, after = (json.dumps(synth.templates, sort_keys=True) for synth in (dev, again["changed"]))
    assert before != after
    masked_before, masked_after = (HASH.sub("HASH", text) for text in (before, after))
    # A dashboard or a policy that differs would survive the mask.
    assert masked_before == masked_after
    assert len(set(HASH.findall(before)) - set(HASH.findall(after))) == 3, "functions, worker and API"


def test_no_template_carries_a_time_or_a_path(dev: Synth, checkout: Path) -> None:
    text = json.dumps(dev.templates)
    assert str(checkout) not in text
    assert not re.search(r"20\d\d-\d\d-\d\dT", text)
