"""Synthesise one environment: `cdk synth -c environment=prod`, or `ENVIRONMENT=prod python app.py`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import aws_cdk as cdk
from cdk_nag import AwsSolutionsChecks

from infra.bundling import bundle
from infra.config import ENVIRONMENTS
from infra.system import build

ROOT = Path(__file__).resolve().parent


def synthesise(app: cdk.App) -> None:
    """Write the templates; a finding of cdk-nag that nobody acknowledged is an error."""
    cdk.Validations.of(app).add_plugins(AwsSolutionsChecks(app))
    app.synth()


def main() -> None:
    # The CDK command line reads cdk.json itself; `python app.py` must see the same flags.
    app = cdk.App(context=json.loads((ROOT / "cdk.json").read_text())["context"])
    name = app.node.try_get_context("environment") or os.environ.get("ENVIRONMENT", "dev")
    if name not in ENVIRONMENTS:
        raise SystemExit(f"no environment {name!r}: choose one of {', '.join(ENVIRONMENTS)}")
    build(app, ENVIRONMENTS[name], bundle())
    synthesise(app)


if __name__ == "__main__":
    main()
