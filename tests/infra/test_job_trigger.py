"""The lambda trigger of job pools against a local AWS endpoint that really runs the function."""

from __future__ import annotations

import io
import json
import logging
import time
import zipfile
from pathlib import Path

import boto3
import pytest

from muster.jobs.triggers import Effects, Trigger, TriggerType, fire

#: Writes down what it was called with; whole, because somebody waits for the file to be there.
CODE = """
import json, os
def handler(event, context):
    draft = os.environ["TOLD"] + ".draft"
    with open(draft, "w") as out:
        json.dump(event, out)
    os.rename(draft, os.environ["TOLD"])
"""
PATIENCE_S = 60.0


@pytest.fixture
def aws(local_aws: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": local_aws,
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def effects() -> Effects:
    return Effects(check=lambda pool: None, jobs_url="memory://")


def test_a_lambda_trigger_runs_the_function_with_the_pool(
    aws: None, effects: Effects, tmp_path: Path
) -> None:
    told = tmp_path / "told.json"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("handler.py", CODE)
    boto3.client("lambda").create_function(
        FunctionName="jobs-check",
        Runtime="python3.12",
        Role="arn:aws:iam::000000000000:role/r",
        Handler="handler.handler",
        Code={"ZipFile": archive.getvalue()},
        Environment={"Variables": {"TOLD": str(told)}},
    )
    fire(Trigger("cloud", TriggerType.LAMBDA, function="jobs-check"), "backtests", effects)
    deadline = time.monotonic() + PATIENCE_S
    while not told.exists():
        assert time.monotonic() < deadline, "the function was never run"
        time.sleep(0.05)
    assert json.loads(told.read_text(encoding="utf-8")) == {
        "source": "muster.jobs",
        "pool_id": "backtests",
    }


def test_a_function_that_is_not_there_is_told_and_not_raised(
    aws: None, effects: Effects, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        fire(Trigger("cloud", TriggerType.LAMBDA, function="nobody"), "backtests", effects)
    assert "trigger cloud for pool backtests failed" in caplog.text
