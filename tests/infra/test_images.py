"""The images, as far as they can be proven without Docker: lint, shape, and nothing missing inside."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from tests.infra.synthesis import ROOT

DOCKERFILES = ("Dockerfile.worker", "Dockerfile.api")
#: The least a deployment tells its API; nothing is asked of anybody before a request comes.
API_VARIABLES = {
    "MUSTER_REGION": "eu-west-1",
    "MUSTER_AUTH_ISSUER": "issuer",
    "MUSTER_AUTH_AUDIENCE": "muster",
    "MUSTER_AUTH_JWKS": "/etc/jwks.json",
    "MUSTER_FN_POOL_MANAGER": "pool_manager",
}
#: What each image must be able to start.
STARTS = {
    "worker": "import worker.boot, worker.jobs, boto3, muster.brokers.alpaca, muster.launchers.ecs",
    "jobs": "import worker.jobs, worker.jobs_echo, worker.jobs_backtest, matplotlib.figure",
    "api": "import api.main, gunicorn.app.wsgiapp, uvicorn.workers, uvloop, httptools\n"
    f"api.main.build({API_VARIABLES})",
}


#: The list of packages a Dockerfile takes as its argument, where its name is not the Dockerfile's own.
FILES = {"worker": "Dockerfile.worker", "jobs": "Dockerfile.worker", "api": "Dockerfile.api"}


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_is_clean(name: str) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, str(ROOT / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", DOCKERFILES)
def test_an_image_is_small_pinned_and_unprivileged(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert len(bases) == 2, "one stage installs, the other runs"
    assert all("-slim-" in base and base.count(".") == 2 for base in bases)
    final = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM ")) :]
    assert "USER 10001:10001" in final
    assert any(line.startswith("HEALTHCHECK") for line in final)
    assert not any("pip install" in line or "apt-get" in line for line in final)


@pytest.mark.parametrize("name", sorted(STARTS))
def test_an_image_has_every_package_its_code_imports(name: str, tmp_path: Path) -> None:
    """The same list at the same versions, in a folder, with only the folders the Dockerfile copies."""
    packages, code = tmp_path / "packages", tmp_path / "app"
    command = [find_uv_bin(), "pip", "install", "--quiet", "--only-binary", ":all:", "--target", packages]
    command += ["--python", sys.executable, "--constraint", ROOT / "requirements.txt"]
    command += ["--requirement", ROOT / "infra" / "images" / f"{name}.txt"]
    subprocess.run(command, check=True, timeout=110)
    code.mkdir()
    for line in (ROOT / FILES[name]).read_text().splitlines():
        if line.startswith("COPY ") and line.endswith("/"):
            folder = line.split()[1].rstrip("/")
            (code / folder).symlink_to(ROOT / folder)
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", STARTS[name]],
        cwd=code,
        env={"PYTHONPATH": f"{code}:{packages}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_nothing_but_the_code_and_its_list_is_sent_to_the_builder() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {
        line.split()[1].rstrip("/")
        for name in DOCKERFILES
        for line in (ROOT / name).read_text().splitlines()
        if line.startswith("COPY ") and not line.startswith("COPY --from")
    }
    for path in copied:
        assert any(path == entry or path.startswith(f"{entry}/") for entry in allowed), path
    assert {entry for entry in allowed if not entry.startswith("Dockerfile")} == {
        "requirements.txt",
        "muster",
        "worker",
        "api",
        "infra/images",
    }
