"""Lines that hold the design: who may import whom, what a waiting worker loads, how a Lua step looks."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from local.valkey import EmbeddedValkey
from muster import blueprint

ROOT = Path(__file__).parents[2]
OTHERS = {"worker", "lambdas", "api", "supervisor", "local", "cli", "sim", "infra", "bench", "tests"}
SCRIPTS = sorted((ROOT / "muster" / "lua").glob("[!_]*.lua"))


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module.split(".")[0])
    return found


def test_the_core_imports_none_of_its_drivers() -> None:
    files = sorted((ROOT / "muster").rglob("*.py"))
    assert len(files) > 15
    assert {str(f.relative_to(ROOT)): bad for f in files if (bad := imports(f) & OTHERS)} == {}


def test_the_core_never_reads_the_environment_or_a_clock_of_its_own() -> None:
    core = "lifecycle maintenance reconcile warm_pool claims commands steps keys model"
    for name in core.split():
        assert imports(ROOT / "muster" / f"{name}.py") & {"os", "time", "boto3", "redis", "random"} <= {
            "redis"  # the claim channel names the client's errors
        }, name


def test_a_waiting_pool_worker_has_loaded_nothing_it_does_not_need(valkey_server: EmbeddedValkey) -> None:
    """The process we have most of: every megabyte here is paid a thousand times."""
    code = """
import sys
import worker.boot as boot
drive = boot._drive
def spy(life, channel, stopping, moments):
    receive = channel.receive
    def looked_at(seconds):
        heavy = {"boto3", "botocore", "pydantic", "fastapi", "typer", "aws_lambda_powertools"}
        print(sorted(heavy & set(sys.modules)))
        boot.signal.raise_signal(boot.signal.SIGTERM)
        return receive(seconds)
    channel.receive = looked_at
    return drive(life, channel, stopping, moments)
boot._drive = spy
sys.exit(boot.main())
"""
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "MUSTER_VALKEY_URL": valkey_server.url,
        "MUSTER_CLAIM_CHANNEL": "valkey",
        "MUSTER_POOL": "architecture",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "[]" in done.stdout.splitlines()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_lua_step_says_what_it_takes_and_what_it_returns(script: Path) -> None:
    source = script.read_text(encoding="utf-8")
    header = re.match(r"--\[\[ (\w+): (.+?)\]\]", source, re.DOTALL)
    assert header, "no header"
    assert header[1] == script.stem
    for word in ("KEYS", "ARGV", "returns"):
        assert re.search(rf"^\s+{word}", header[2], re.MULTILINE), word
    body = source[header.end() :]
    tags = set(re.findall(r"return \{\s*'(\w+)'", body))
    assert tags <= set(re.findall(r"\{'(\w+)'", header[2])), tags
    assert not re.search(r"return\s*(nil|false)?\s*$", body, re.MULTILINE), "a bare return"


def test_every_script_has_a_builder_and_every_builder_a_script() -> None:
    named: set[str] = set()
    for path in (ROOT / "muster").rglob("*.py"):
        named |= set(re.findall(r"\blua\(\s*\"(\w+)\"", path.read_text(encoding="utf-8")))
    for path in (ROOT / "worker").glob("*.py"):
        named |= set(re.findall(r"\blua\(\s*\"(\w+)\"", path.read_text(encoding="utf-8")))
    assert named == {script.stem for script in SCRIPTS}


def test_the_time_line_is_as_long_as_the_blueprint_says() -> None:
    prelude = (ROOT / "muster" / "lua" / "_prelude.lua").read_text(encoding="utf-8")
    (last,) = re.findall(r"'LTRIM', history, 0, (\d+)", prelude)
    assert int(last) + 1 == blueprint.HISTORY_LENGTH


def test_scripts_touch_only_the_keys_they_are_given() -> None:
    for script in [*SCRIPTS, ROOT / "muster" / "lua" / "_prelude.lua"]:
        for call in re.findall(r"redis\.call\('(\w+)', ([^,)]+)", script.read_text(encoding="utf-8")):
            if call[0] in ("TIME", "PUBLISH"):
                continue
            assert re.match(r"KEYS\[|keys\[|key\b|history\b", call[1]), (script.name, call)
