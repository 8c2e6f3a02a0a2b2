"""The reference pages say what the code says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from worker.exits import Exit

ROOT = Path(__file__).parents[2]


def _generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", _generator().pages())
def test_a_generated_page_has_not_drifted_from_the_code(name: str) -> None:
    page = (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")
    assert page == _generator().pages()[name], "run 'python docs/generate.py'"


def test_every_exit_code_of_a_worker_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "worker.md").read_text(encoding="utf-8")
    for code in Exit:
        assert f"| {code.value} | {code.name.lower().replace('_', ' ')} |" in page
