"""One way to say that a cdk-nag finding is known, and why it stands."""

from __future__ import annotations

import aws_cdk as cdk
from constructs import IConstruct


def acknowledge(scope: IConstruct, rule: str, reason: str) -> None:
    """Accept `rule` for `scope` and what is inside it. The reason is for the next reader, so make it one."""
    cdk.Validations.of(scope).acknowledge(cdk.Acknowledgment(id=rule, reason=reason))


def acknowledge_wildcard(role: IConstruct, resource: str, reason: str) -> None:
    """Accept one wildcard resource in the policies of `role`, and no other."""
    shown = resource.replace(cdk.Aws.ACCOUNT_ID, "<AWS::AccountId>")
    acknowledge(role, f"AwsSolutions-IAM5[Resource::{shown}]", reason)
