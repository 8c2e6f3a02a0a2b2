"""The same code gives the same templates; other application code changes only hashes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.infra.synthesis import Synth, copy_sources, synthesise

HASH = re.compile(r"[0-9a-f]{64}")


@pytest.fixture(scope="module")
def changed(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Synth:
    """`dev` again, from another folder, with one more comment in the code of the functions."""
    folder = tmp_path_factory.mktemp("changed")
    copy = copy_sources(folder / "copy", checkout)
    with (copy / "lambdas" / "wiring.py").open("a") as code:
        code.write("# a comment more\n")
    return synthesise(copy, "dev", folder / "out")


def test_changed_application_code_changes_only_its_own_hash(dev: Synth, changed: Synth) -> None:
    """So nothing else in the templates depends on the time, the folder or chance, image hashes included."""
    before, after = (json.dumps(synth.templates, sort_keys=True) for synth in (dev, changed))
    (old,) = set(HASH.findall(before)) - set(HASH.findall(after))
    (new,) = set(HASH.findall(after)) - set(HASH.findall(before))
    assert before.replace(old, new) == after
    assert len(dev.templates) == 7


def test_the_same_code_gives_the_same_zip_everywhere(dev: Synth, synths: dict[str, Synth]) -> None:
    zips = {path.name for synth in synths.values() for path in synth.folder.glob("asset.*.zip")}
    assert len(zips) == 1


def test_no_template_carries_a_time_or_a_path(dev: Synth, checkout: Path) -> None:
    text = json.dumps(dev.templates)
    assert str(checkout) not in text
    assert not re.search(r"20\d\d-\d\d-\d\dT", text)
