"""The functions' zip: small, complete, the same bytes every time."""

from __future__ import annotations

import zipfile

import pytest

from infra import bundling
from muster import blueprint


@pytest.fixture(scope="module")
def names() -> list[str]:
    with zipfile.ZipFile(bundling.bundle()) as archive:
        return archive.namelist()


def test_the_zip_is_small() -> None:
    assert bundling.bundle().stat().st_size < 15 * 2**20


def test_the_same_code_gives_the_same_bytes() -> None:
    first = bundling.bundle().read_bytes()
    assert bundling.bundle().read_bytes() == first


def test_binaries_are_those_of_the_target(names: list[str]) -> None:
    binaries = [name for name in names if name.endswith(".so")]
    assert binaries
    assert all("cpython-314-aarch64" in name for name in binaries)


def test_the_zip_holds_the_handlers_and_what_they_import_and_nothing_else(names: list[str]) -> None:
    for function in blueprint.FUNCTIONS:
        assert f"lambdas/{function.name}/handler.py" in names
    assert "muster/lua/begin_start.lua" in names
    tops = {name.split("/")[0] for name in names}
    assert {"aws_lambda_powertools", "hiredis", "redis"} <= tops
    assert not tops & {"boto3", "botocore", "aws_cdk", "worker", "api", "local", "infra", "tests", "bin"}
    assert "pydantic" not in tops  # what every cold start would load
    assert not [name for name in names if name.endswith((".pyc", "/RECORD", "/INSTALLER"))]
