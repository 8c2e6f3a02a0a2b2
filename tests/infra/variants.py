"""Applications only the tests synthesise: `python variants.py secure|bad`, into CDK_OUTDIR."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sqs as sqs

from app import synthesise
from infra.bundling import bundle
from infra.config import ENVIRONMENTS
from infra.system import build


def secure(app: cdk.App) -> None:
    """dev with a certificate, a name, and no way out but the endpoints."""
    environment = replace(
        ENVIRONMENTS["dev"],
        certificate_arn="arn:aws:acm:eu-west-1:111122223333:certificate/00000000-0000-0000-0000-000000000000",
        domain="muster.example.com",
        hosted_zone_id="Z0000000000000000000",
        nat_gateways=0,
        interface_endpoints=True,
    )
    build(app, environment, bundle())


def bad(app: cdk.App) -> None:
    """What the checks must catch: an open queue without a dead-letter queue, and a role that may do all."""
    stack = cdk.Stack(app, "dev-muster-bad")
    sqs.Queue(stack, "Open")
    role = iam.Role(stack, "Role", assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"))
    role.add_to_policy(iam.PolicyStatement(actions=["sqs:*"], resources=["*"]))
    role.add_managed_policy(iam.ManagedPolicy.from_aws_managed_policy_name("AmazonSQSFullAccess"))


if __name__ == "__main__":
    flags = json.loads(Path("cdk.json").read_text())["context"]
    application = cdk.App(context=flags)
    {"secure": secure, "bad": bad}[sys.argv[1]](application)
    synthesise(application)
