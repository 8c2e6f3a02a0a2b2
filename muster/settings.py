"""Settings as one typed value. Drivers pass the environment in; the core never reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from muster import blueprint
from muster.errors import Refused


@dataclass(frozen=True, slots=True)
class Settings:
    """How one deployment is wired. Every field is a `MUSTER_*` variable in upper case."""

    env: str = "local"
    valkey_url: str = "redis://127.0.0.1:6390/0"
    valkey_cluster: bool = False
    #: RBAC user of this role; authenticates by IAM, so no password is configured anywhere.
    valkey_user: str = ""
    #: Which service signs the IAM token, and for which cache.
    valkey_iam_service: Literal["", "elasticache", "memorydb"] = ""
    valkey_name: str = ""
    #: The store can lose acknowledged writes in a failover: wait for a replica after the writes that fence.
    valkey_wait_replica: bool = False
    queue_worker_control: str = ""
    queue_worker_control_dlq: str = ""
    queue_order_tasks: str = ""
    queue_order_tasks_dlq: str = ""
    queue_pool_claim: str = ""
    claim_channel: Literal["sqs", "valkey"] = "sqs"
    launcher: Literal["ecs", "process"] = "ecs"
    cluster: str = ""
    task_definition: str = ""
    capacity_provider: str = ""
    container: str = "worker"
    pool: str = "default"
    pool_target: int = blueprint.POOL_TARGET
    version: str = "dev"
    fn_maintenance_worker: str = ""
    fn_pool_manager: str = ""
    #: Where one-shot schedules of fill checks go, and the role that may put them there.
    order_tasks_arn: str = ""
    scheduler_role_arn: str = ""
    region: str = "us-east-1"
    aws_endpoint: str = ""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Read the `MUSTER_*` variables; a value of the wrong kind is refused with its name."""
        values: dict[str, object] = {}
        for name, spec in cls.__dataclass_fields__.items():
            if (raw := environ.get(f"MUSTER_{name.upper()}")) is None:
                continue
            values[name] = _convert(name, raw, str(spec.type))
        values.setdefault(
            "region", environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        )
        return cls(**values)  # type: ignore[arg-type]


def _convert(name: str, raw: str, kind: str) -> object:
    if kind == "int":
        if not raw.isdecimal():
            raise Refused(f"MUSTER_{name.upper()} must be a whole number, not {raw!r}")
        return int(raw)
    if kind == "bool":
        if raw.lower() not in ("true", "false"):
            raise Refused(f"MUSTER_{name.upper()} must be true or false, not {raw!r}")
        return raw.lower() == "true"
    if kind.startswith("Literal"):
        allowed = [word.strip("\"' ") for word in kind[len("Literal[") : -1].split(",")]
        if raw not in allowed:
            raise Refused(
                f"MUSTER_{name.upper()} must be one of {', '.join(filter(None, allowed))}, not {raw!r}"
            )
    return raw
