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

    #: Name of the deployment (dev, stage, prod).
    env: str = "local"
    #: Where Valkey is; rediss:// for TLS.
    valkey_url: str = "redis://127.0.0.1:6390/0"
    #: Whether Valkey runs in cluster mode.
    valkey_cluster: bool = False
    #: RBAC user of this role; authenticates by IAM, so no password is configured anywhere.
    valkey_user: str = ""
    #: Which service signs the IAM token.
    valkey_iam_service: Literal["", "elasticache", "memorydb"] = ""
    #: The cache the IAM token is signed for.
    valkey_name: str = ""
    #: The store can lose acknowledged writes in a failover: wait for a replica after the writes that fence.
    valkey_wait_replica: bool = False
    #: URL of worker-control.fifo.
    queue_worker_control: str = ""
    #: URL of its dead-letter queue.
    queue_worker_control_dlq: str = ""
    #: URL of order-tasks.fifo.
    queue_order_tasks: str = ""
    #: URL of its dead-letter queue.
    queue_order_tasks_dlq: str = ""
    #: URL of pool-claim.
    queue_pool_claim: str = ""
    #: How claims travel to pool workers.
    claim_channel: Literal["sqs", "valkey"] = "sqs"
    #: What runs the tasks.
    launcher: Literal["ecs", "process"] = "ecs"
    #: ECS cluster of the workers.
    cluster: str = ""
    #: ECS task definition of a worker.
    task_definition: str = ""
    #: ECS task definition of a job worker, where a pool has no pin.
    job_task_definition: str = ""
    #: ECS capacity provider of the workers.
    capacity_provider: str = ""
    #: Name of the worker's container in its task definition.
    container: str = "worker"
    #: Name of the warm pool.
    pool: str = "default"
    #: Warm workers to keep, until an operator sets another number.
    pool_target: int = blueprint.POOL_TARGET
    #: Let recent demand raise the target above that number.
    pool_adaptive: bool = False
    #: The calendar's windows, with `;` between them: `mon-fri 09:10-09:45 America/New_York 180`.
    pool_windows: str = ""
    #: The most warm workers that demand and calendar may ask for: the budget.
    pool_cap: int = blueprint.POOL_CAP
    #: Code version that a pool worker must have to take a claim.
    version: str = "dev"
    #: Name of the maintenance_worker function.
    fn_maintenance_worker: str = ""
    #: Name of the pool_manager function.
    fn_pool_manager: str = ""
    #: File of job triggers (triggers.yml) that say how a pool that got work is checked; empty: at once.
    job_triggers: str = ""
    #: Where one-shot schedules of fill checks send to.
    order_tasks_arn: str = ""
    #: The role under which those schedules send.
    scheduler_role_arn: str = ""
    #: Who issues the API's tokens: their `iss` claim.
    auth_issuer: str = ""
    #: Whom they are for: their `aud` claim.
    auth_audience: str = ""
    #: Where the issuer publishes its keys (JWKS): an https address, or a file.
    auth_jwks: str = ""
    #: The claim that holds the role, as a word or a list of words.
    auth_role_claim: str = "muster_role"
    #: The claim that holds the user id of role user.
    auth_user_claim: str = "sub"
    #: Origins whose pages may call the API, separated by commas; empty: only its own page.
    api_origins: str = ""
    #: AWS Region.
    region: str = "us-east-1"
    #: Where spans go (OTLP over HTTP), for example http://127.0.0.1:4318; empty: none are made.
    otlp_endpoint: str = ""
    #: Address of a local AWS endpoint; empty on AWS.
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
