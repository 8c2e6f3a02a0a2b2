"""Log groups, made here so that every one has a retention and goes away with its stack."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_logs as logs
from constructs import Construct

from infra.config import Environment

_RETENTION = {
    1: logs.RetentionDays.ONE_DAY,
    7: logs.RetentionDays.ONE_WEEK,
    30: logs.RetentionDays.ONE_MONTH,
    90: logs.RetentionDays.THREE_MONTHS,
    365: logs.RetentionDays.ONE_YEAR,
}


def log_group(scope: Construct, name: str, environment: Environment, path: str) -> logs.LogGroup:
    return logs.LogGroup(
        scope,
        name,
        log_group_name=f"/muster/{environment.name}/{path}",
        retention=_RETENTION[environment.log_days],
        removal_policy=cdk.RemovalPolicy.DESTROY,
    )
