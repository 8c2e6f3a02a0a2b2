"""The commands of the README work: each is run here, in order, against a real engine."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.driver import EngineProcess

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]
MAKE = [line for line in COMMANDS if line.startswith("make ")]
OTHERS = [line for line in COMMANDS if not line.startswith("make ")]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which `muster up` runs, as the README assumes."""
    folder = tmp_path_factory.mktemp("readme")
    engine = EngineProcess(folder / ".muster", "--pool", "1")
    try:
        engine.start()
        yield folder
    finally:
        engine.end()


def test_the_readme_has_commands() -> None:
    assert "make demo" in MAKE
    assert "make test" in MAKE
    assert any(line.startswith("muster start") for line in OTHERS)


@pytest.mark.parametrize("line", MAKE)
def test_a_make_verb_of_the_readme_exists(line: str) -> None:
    done = subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", OTHERS)
def test_a_command_of_the_readme_works(line: str, home: Path) -> None:
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "NO_COLOR": "1"}
    done = subprocess.run(shlex.split(line), cwd=home, env=env, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def test_make_alone_lists_the_verbs() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for verb in ("demo", "test", "lint", "up"):
        assert re.search(rf"make {verb}\s+\S", done.stdout)
