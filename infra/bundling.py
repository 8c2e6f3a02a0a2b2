"""The functions' zip, built without Docker: pinned wheels for the target, our code, nothing else.

The same input gives the same bytes: files in order, one date, no compiled files, no installer records.
Wheels are fetched once per set of pins and kept under `build/`, so a later synthesis needs no network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "functions"

#: What the handlers import beyond the standard library. boto3 is part of the Lambda runtime.
REQUIREMENTS = ("aws-lambda-powertools", "hiredis", "redis", "websockets")
PACKAGES = ("lambdas", "muster")
SOURCE_SUFFIXES = {".py", ".lua", ".toml"}

#: Installer records, and what only a package manager reads.
_DROPPED = {"RECORD", "INSTALLER", "REQUESTED", "uv_cache.json", "direct_url.json"}
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Target:
    """The machine a zip is built for, in uv's words."""

    platform: str
    python: str


LAMBDA = Target("aarch64-manylinux2014", "3.14")


def this_machine() -> Target:
    """A zip that this interpreter can import: how the tests run what is deployed."""
    machine = sysconfig.get_platform().rsplit("-", 1)[1].replace("arm64", "aarch64")
    return Target(f"{machine}-manylinux_2_28", f"{sys.version_info.major}.{sys.version_info.minor}")


def bundle(target: Target = LAMBDA) -> Path:
    """Build the zip for `target` from the code as it is; returns its path."""
    wheels = _wheels(target)
    path = BUILD / f"{target.platform}-{target.python}.zip"
    # Two processes may build at once: each its own file, and the last one wins whole.
    partial = path.with_suffix(f".{os.getpid()}")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sorted([*_files(wheels), *_sources()]):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, source.read_bytes())
    partial.replace(path)
    return path


def _wheels(target: Target) -> Path:
    pins = (ROOT / "requirements.txt").read_text()
    key = hashlib.sha256(repr((REQUIREMENTS, target, pins)).encode()).hexdigest()[:16]
    folder = BUILD / f"wheels-{key}"
    if folder.exists():
        return folder
    BUILD.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="wheels-", suffix=".partial", dir=BUILD))
    command = [find_uv_bin(), "pip", "install", "--quiet", "--no-compile-bytecode", "--only-binary", ":all:"]
    command += [
        "--python",
        sys.executable,
        "--target",
        str(partial),
        "--constraint",
        str(ROOT / "requirements.txt"),
    ]
    command += ["--python-platform", target.platform, "--python-version", target.python, *REQUIREMENTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"no wheels for {target.platform}, Python {target.python}. The first synthesis after a change "
            f"of requirements.txt needs the package index; uv said:\n{done.stderr.strip()}"
        )
    try:
        partial.rename(folder)
    except OSError:
        # Another process was first; its wheels are the same ones.
        shutil.rmtree(partial)
    return folder


def _files(wheels: Path) -> Iterator[tuple[str, Path]]:
    for path in wheels.rglob("*"):
        name = path.relative_to(wheels)
        if path.is_dir() or name.parts[0] == "bin" or path.suffix == ".pyc" or path.name == ".lock":
            continue
        if name.parts[0].endswith(".dist-info") and path.name in _DROPPED:
            continue
        yield name.as_posix(), path


def _sources() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.suffix in SOURCE_SUFFIXES and path.is_file():
                yield path.relative_to(ROOT).as_posix(), path
