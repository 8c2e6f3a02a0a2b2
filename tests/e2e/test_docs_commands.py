"""Every command in the README and the docs is run, page by page, as a reader would: in one shell, in order.

Files that a page shows (their first line is a comment with their name) are written first. Where the page
assumes `muster up`, it runs. What a test cannot do is replaced, and only that: `make` runs dry (its verbs
have tests of their own, and one of them runs this), `npx cdk` is held to what `tests/infra/test_deploy.py`
really deploys, and long runs are made short.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import boto3
import pytest

from local.driver import EngineProcess
from local.endpoint import REGION
from local.valkey import free_port

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"^# (\S+\.\w+)\n")
#: A page that names one of these names a service of this machine; each gets a free port.
_PORTS = ("3001", "3002", "3003", "4566", "6390", "8765")
_SHORTER = {
    r"--seeds \d+": "--seeds 5",
    r"--users 1000000": "--users 2000",
    r"--minutes \d+": "--minutes 0.2",
}
_CDK = {"bootstrap", "deploy --all -c environment=dev", "destroy --all -c environment=dev"}
_PRELUDE = """
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true; wait 2>/dev/null || true' EXIT
make() { command make -n -C "$ROOT" "$@" >/dev/null; }
aws() { command aws --endpoint-url "$AWS_ENDPOINT_URL" "$@"; }
npx() { test "$1" = cdk; shift; grep -qxF -- "$*" "$CDK_COMMANDS"; }
"""


def blocks_of(page: Path, kind: str) -> list[str]:
    return [body for found, body in _FENCE.findall(page.read_text(encoding="utf-8")) if found == kind]


PAGES = [page for page in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]) if blocks_of(page, "sh")]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """What `make up` runs; every page may use it."""
    made = EngineProcess(tmp_path_factory.mktemp("docs") / ".muster", "--pool", "1", "--session", "broker")
    try:
        yield made.start()
    finally:
        made.end()


@pytest.fixture(scope="module")
def aws(engine: EngineProcess) -> str:
    """An account in which `dev` has been deployed, as far as the pages look at it."""
    url = str(engine.endpoints["aws"])

    def client(service: str) -> Any:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        return boto3.client(service, region_name=REGION, endpoint_url=url, **keys)

    client("sqs").create_queue(QueueName="dev-worker-control.fifo", Attributes={"FifoQueue": "true"})
    return url


def environment(engine: EngineProcess, aws: str, folder: Path) -> dict[str, str]:
    allowed = folder / "cdk-commands"
    allowed.write_text("\n".join(sorted(_CDK)) + "\n", encoding="utf-8")
    return os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ROOT": str(ROOT),
        "CDK_COMMANDS": str(allowed),
        "NO_COLOR": "1",
        "AWS_ENDPOINT_URL": aws,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": REGION,
    }


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", [page.relative_to(ROOT).as_posix() for page in PAGES])
def test_the_commands_of_a_page_work(name: str, engine: EngineProcess, aws: str, tmp_path: Path) -> None:
    page = ROOT / name
    ports = {port: str(free_port()) for port in _PORTS}
    ports["3001"] = engine.endpoints["api"].rsplit(":", 1)[1]
    own_engine = "muster up" in "".join(blocks_of(page, "sh"))
    if own_engine:
        ports["3001"] = str(free_port())

    def here(text: str) -> str:
        for port, free in ports.items():
            text = re.sub(rf"(?<=[ :]){port}\b", free, text)
        return text

    (tmp_path / ".muster").symlink_to(engine.folder)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for kind in ("python", "yaml"):
        for body in blocks_of(page, kind):
            if named := _NAMED.match(body):
                file = tmp_path / named[1]
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(here(body), encoding="utf-8")
    script = _PRELUDE + here("\n".join(blocks_of(page, "sh")))
    for long, short in _SHORTER.items():
        script = re.sub(long, short, script)
    # A group of its own, so that what a page leaves in the background ends with it.
    shell = subprocess.Popen(
        ["bash", "-x", "-c", script],
        cwd=tmp_path,
        env=environment(engine, aws, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = shell.communicate(timeout=200)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, f"{name}\n{said[-6000:]}"


def test_the_readme_has_the_two_commands() -> None:
    commands = "".join(blocks_of(ROOT / "README.md", "sh"))
    assert "make demo\n" in commands
    assert "make test\n" in commands


def test_make_alone_lists_the_verbs() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for verb in ("demo", "test", "lint", "up"):
        assert re.search(rf"make {verb}\s+\S", done.stdout)
