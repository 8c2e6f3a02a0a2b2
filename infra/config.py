"""The environments, typed. What differs between them is here; what is the same is in the blueprint."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from muster import blueprint


class Flavour(StrEnum):
    """Which Valkey holds the marks."""

    MEMORYDB = "memorydb"  #: no acknowledged write is lost in a failover
    ELASTICACHE = "elasticache"  #: cheaper; a failover may lose writes, workers may overlap for one beat
    LOCAL = "local"  #: a server the local engine runs; nothing is deployed


class ClaimChannel(StrEnum):
    """How a claim reaches a pool worker."""

    SQS = "sqs"
    VALKEY = "valkey"


@dataclass(frozen=True, slots=True)
class Capacity:
    """Instances an Auto Scaling group may hold."""

    minimum: int
    maximum: int

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum:
            raise ValueError(f"capacity {self.minimum}..{self.maximum}: give 0 <= minimum <= maximum")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Whose tokens the API takes: an OpenID provider, by what it writes into them and where its keys are."""

    issuer: str
    audience: str
    #: Its published keys, by https.
    jwks: str
    role_claim: str = "muster_role"
    user_claim: str = "sub"
    #: Pages of other origins that may call the API, separated by commas.
    origins: str = ""

    def __post_init__(self) -> None:
        if not (self.issuer and self.audience and self.jwks.startswith("https://")):
            raise ValueError(
                "tokens: give issuer, audience and the https address of the issuer's keys (jwks)"
            )

    def variables(self) -> dict[str, str]:
        """The API's settings."""
        return {
            "MUSTER_AUTH_ISSUER": self.issuer,
            "MUSTER_AUTH_AUDIENCE": self.audience,
            "MUSTER_AUTH_JWKS": self.jwks,
            "MUSTER_AUTH_ROLE_CLAIM": self.role_claim,
            "MUSTER_AUTH_USER_CLAIM": self.user_claim,
            "MUSTER_API_ORIGINS": self.origins,
        }


def cognito(region: str, pool: str, client: str) -> Tokens:
    """The id tokens of a Cognito user pool: groups called operator, viewer and user are the roles."""
    issuer = f"https://cognito-idp.{region}.amazonaws.com/{pool}"
    return Tokens(issuer, client, f"{issuer}/.well-known/jwks.json", role_claim="cognito:groups")


@dataclass(frozen=True, slots=True)
class Environment:
    """One deployment of the whole system. Accounts are chosen by the credentials, never written here."""

    name: str
    region: str
    alert_email: str | None
    valkey: Flavour
    valkey_node: str
    valkey_replicas: int
    pool_target: int = blueprint.POOL_TARGET
    #: The pool manager follows the claim rate, from `pool_target` on.
    pool_adaptive: bool = False
    #: When more must wait than demand has shown, such as `mon-fri 09:10-09:45 America/New_York 180`.
    pool_windows: str = ""
    #: The most warm workers that demand and calendar may ask for.
    pool_cap: int = blueprint.POOL_CAP
    claim_channel: ClaimChannel = ClaimChannel.SQS
    #: Concurrency of worker_control and order_tasks, within the blueprint's range.
    queue_concurrency: int = 50
    availability_zones: int = 2
    #: Workers reach their brokers through NAT. 0 is for a paper broker inside the VPC only.
    nat_gateways: int = 1
    #: Private addresses for the AWS services the fleet talks to: no NAT traffic, about 7 USD each per zone.
    interface_endpoints: bool = False
    api: Capacity = Capacity(1, 4)
    #: How workers are sized, one of the blueprint's profiles; `muster capacity` shows the arithmetic of each.
    profile: str = "seed"
    #: The minimum of 0 lets the worker group end when no user runs and the pool target is 0.
    workers: Capacity = Capacity(0, 10)
    #: Who may say who calls the API. None only where no API is deployed.
    tokens: Tokens | None = None
    certificate_arn: str | None = None
    #: A name of our own for the API, in a hosted zone of Route 53.
    domain: str | None = None
    hosted_zone_id: str | None = None
    waf: bool = False
    log_days: int = 30
    backup_days: int = 1
    protect: bool = False
    #: Where `docs/runbooks/` is served; alarms point there.
    runbooks: str = "docs/runbooks"
    #: Where spans of each start go (OTLP over HTTP, reachable from the VPC); empty: none are made.
    otlp_endpoint: str = ""

    def __post_init__(self) -> None:
        low, high = blueprint.FN_WORKER_CONTROL.concurrency, blueprint.FN_WORKER_CONTROL.max_concurrency
        if low is not None and high is not None and not low <= self.queue_concurrency <= high:
            raise ValueError(f"queue_concurrency {self.queue_concurrency}: give {low} to {high}")
        if self.profile not in blueprint.WORKER_PROFILES:
            raise ValueError(f"profile {self.profile!r}: give one of {', '.join(blueprint.WORKER_PROFILES)}")
        if self.availability_zones not in (2, 3):
            raise ValueError("availability_zones: give 2 or 3")
        if not self.local and not self.nat_gateways and not self.interface_endpoints:
            raise ValueError("no way out of the VPC: give nat_gateways or interface_endpoints")
        if not self.local and self.tokens is None:
            raise ValueError("tokens: name the issuer of the API's tokens; without one nobody could call it")
        if self.domain and not (self.certificate_arn and self.hosted_zone_id):
            raise ValueError("a domain needs certificate_arn (ACM, same Region) and hosted_zone_id")

    @property
    def local(self) -> bool:
        """Only queues and control plane, for the local AWS endpoint: no VPC, no cluster, no cache."""
        return self.valkey is Flavour.LOCAL

    @property
    def fleet(self) -> blueprint.WorkerFleet:
        return blueprint.WORKER_PROFILES[self.profile]

    def named(self, base: str) -> str:
        """The physical name of a thing, so that two environments can share an account."""
        return f"{self.name}-{base}"

    @property
    def broker_secrets(self) -> str:
        """Prefix of the secrets that hold broker credentials; a claim carries only the rest of the name."""
        return f"muster/{self.name}/brokers/"


ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment(
            name="dev",
            region="eu-west-1",
            alert_email=None,
            tokens=cognito("eu-west-1", "eu-west-1_example", "muster-dev"),
            valkey=Flavour.ELASTICACHE,
            valkey_node="cache.t4g.small",
            valkey_replicas=1,
            pool_target=0,
            workers=Capacity(0, 2),
            api=Capacity(1, 2),
            log_days=7,
        ),
        Environment(
            name="stage",
            region="eu-west-1",
            alert_email="orchestrator-stage@example.com",
            tokens=cognito("eu-west-1", "eu-west-1_example", "muster-stage"),
            valkey=Flavour.MEMORYDB,
            valkey_node="db.t4g.medium",
            valkey_replicas=1,
            interface_endpoints=True,
            api=Capacity(1, 4),
            workers=Capacity(0, 4),
        ),
        Environment(
            name="prod",
            region="eu-west-1",
            alert_email="orchestrator@example.com",
            tokens=cognito("eu-west-1", "eu-west-1_example", "muster-prod"),
            valkey=Flavour.MEMORYDB,
            valkey_node="db.r7g.large",
            valkey_replicas=2,
            pool_adaptive=True,
            availability_zones=3,
            nat_gateways=3,
            interface_endpoints=True,
            api=Capacity(2, 10),
            workers=Capacity(1, 100),
            waf=True,
            log_days=90,
            backup_days=7,
            protect=True,
        ),
        Environment(
            name="local",
            region="us-east-1",
            alert_email=None,
            valkey=Flavour.LOCAL,
            valkey_node="",
            valkey_replicas=0,
            log_days=1,
        ),
    )
}
