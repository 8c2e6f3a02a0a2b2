"""What a fleet costs a month, by arithmetic alone: a footprint, a number of users, a list of prices.

An estimate for choosing sizes: list prices, an even month, no discounts. Traffic to brokers is the one
thing nobody can know beforehand; it is a parameter.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from importlib.resources import files
from math import ceil
from typing import Any

from muster import blueprint
from muster.blueprint import WorkerFleet

HOURS = 730
MINUTES = HOURS * 60
SECONDS = MINUTES * 60
DISK_GB_PER_HOST = 30

#: What the arithmetic assumes about a run of each function, in seconds; measured locally, rounded up.
SWEEP_RUN_S = 2.0
BATCH_RUN_S = 1.0
COMMAND_RUN_S = 0.5
#: An SQS event source keeps five pollers, each asking once in 20 s when nothing comes.
IDLE_POLLS = 5 * SECONDS / 20
#: A pool worker waits for a claim in slices of 2 s.
POOL_POLL_S = 2.0
LOG_GB_PER_THOUSAND_USERS = 10.0
OWN_METRICS = 20

WORKER_INSTANCES = "worker instances"  #: the part of the bill that a choice of compute changes
#: The least that a user's worker could have to itself: Fargate's smallest task, and the smallest instance.
FARGATE_VCPU, FARGATE_GB = 0.25, 0.5
OWN_INSTANCE, OWN_INSTANCE_DISK_GB = "t4g.nano", 8


@dataclass(frozen=True, slots=True)
class Footprint:
    """What an environment keeps whether anybody uses it or not."""

    zones: int
    nat_gateways: int
    endpoints: int
    api_hosts: int
    least_worker_hosts: int
    pool_target: int
    valkey_node: str
    valkey_nodes: int
    waf: bool
    alarms: int = 18


#: The environments of `infra/config.py`; a test holds both together.
FOOTPRINTS = {
    "dev": Footprint(2, 1, 0, 1, 0, 0, "cache.t4g.small", 2, False),
    "stage": Footprint(2, 1, 10, 1, 0, blueprint.POOL_TARGET, "db.t4g.medium", 2, False),
    "prod": Footprint(3, 3, 10, 2, 1, blueprint.POOL_TARGET, "db.r7g.large", 3, True),
}


@dataclass(frozen=True, slots=True)
class Load:
    """How the system is used."""

    users: int = 0
    starts_per_user_per_day: float = 1.0
    orders_per_user_per_day: float = 10.0
    traffic_gb_per_user: float = 0.1
    own_credentials: bool = True


@dataclass(frozen=True, slots=True)
class Prices:
    """The list in `prices.toml`, with its date and Region."""

    date: date
    region: str
    values: Mapping[str, Mapping[str, float]]

    @classmethod
    def load(cls) -> Prices:
        raw: dict[str, Any] = tomllib.loads(files("muster").joinpath("prices.toml").read_text())
        return cls(raw["date"], raw["region"], {k: v for k, v in raw.items() if isinstance(v, dict)})

    def hourly(self, name: str, count: float = 1) -> float:
        """A month of `count` things that are paid by the hour."""
        return self.values["hour"][name] * HOURS * count

    def monthly(self, name: str, count: float) -> float:
        return self.values["month"][name] * count

    def millions(self, name: str, count: float) -> float:
        return self.values["million"][name] * count / 1_000_000

    def each(self, name: str, count: float) -> float:
        return self.values["each"][name] * count


def pool_usd(worker_hours: float, prices: Prices) -> float:
    """What waiting workers cost: their share of an instance."""
    hosts = worker_hours / blueprint.WORKERS.tasks_per_instance / HOURS
    return prices.hourly(blueprint.WORKERS.instance.type, hosts)


def worker_hosts(footprint: Footprint, users: int, fleet: WorkerFleet = blueprint.WORKERS) -> int:
    """Instances for users and warm pool, at the profile's tasks per instance."""
    needed = ceil((users + footprint.pool_target) / fleet.tasks_per_instance)
    return max(footprint.least_worker_hosts, needed)


def monthly(
    footprint: Footprint, load: Load, prices: Prices, fleet: WorkerFleet = blueprint.WORKERS
) -> dict[str, float]:
    """USD a month by part, the largest question first."""
    hosts = worker_hosts(footprint, load.users, fleet)
    starts = load.users * load.starts_per_user_per_day * 30
    orders = load.users * load.orders_per_user_per_day * 30
    batches = ceil(load.users / blueprint.SWEEP_BATCH_USERS) * MINUTES
    refills = SECONDS / (blueprint.FN_POOL_MANAGER.every or blueprint.MARK_TTL).total_seconds()
    gb = blueprint.FN_MAINTENANCE.memory_mb / 1024
    runs_s = MINUTES * SWEEP_RUN_S + batches * BATCH_RUN_S + (starts + orders + refills) * COMMAND_RUN_S
    # Sent, received, deleted; a claim besides its command.
    messages = 3 * (starts + orders) + 2 * IDLE_POLLS
    claims = 3 * starts + footprint.pool_target * SECONDS / POOL_POLL_S
    return {
        WORKER_INSTANCES: prices.hourly(fleet.instance.type, hosts)
        + prices.monthly("disk_gb", hosts * DISK_GB_PER_HOST),
        "API instances": prices.hourly(blueprint.API.instance.type, footprint.api_hosts)
        + prices.monthly("disk_gb", footprint.api_hosts * DISK_GB_PER_HOST),
        "Valkey": prices.hourly(footprint.valkey_node, footprint.valkey_nodes),
        "network": prices.hourly("nat_gateway", footprint.nat_gateways)
        + prices.hourly("interface_endpoint", footprint.endpoints * footprint.zones)
        + prices.hourly("load_balancer")
        + prices.each("nat_gb", load.users * load.traffic_gb_per_user if footprint.nat_gateways else 0),
        "functions": prices.each("lambda_gb_second", runs_s * gb)
        + prices.millions("invocation", MINUTES + batches + starts + orders + refills),
        "queues": prices.millions("sqs_fifo", messages) + prices.millions("sqs_standard", claims),
        "secrets": prices.monthly("secret", (load.users if load.own_credentials else 0) + 1),
        "watching": prices.monthly("alarm", footprint.alarms)
        + prices.monthly("metric", OWN_METRICS)
        + prices.monthly("dashboard", 1)
        + prices.each("log_gb", load.users / 1000 * LOG_GB_PER_THOUSAND_USERS),
        "firewall": prices.monthly("waf", int(footprint.waf)),
    }


def compute_of(footprint: Footprint, load: Load, prices: Prices) -> dict[str, float]:
    """USD a month for what runs the workers, by way of running them; the rest of the bill is the same.

    A worker of its own needs no warm pool, and none is counted for it.
    """
    ours = {
        f"{name} profile, {fleet.tasks_per_instance} on one {fleet.instance.type}": monthly(
            footprint, load, prices, fleet
        )[WORKER_INSTANCES]
        for name, fleet in blueprint.WORKER_PROFILES.items()
    }
    fargate = prices.hourly("fargate_vcpu", FARGATE_VCPU) + prices.hourly("fargate_gb", FARGATE_GB)
    instance = prices.hourly(OWN_INSTANCE) + prices.monthly("disk_gb", OWN_INSTANCE_DISK_GB)
    return ours | {
        f"Fargate task per user, {FARGATE_VCPU} vCPU and {FARGATE_GB} GB": fargate * load.users,
        f"always-on {OWN_INSTANCE} per user": instance * load.users,
    }


def million_starts(prices: Prices) -> float:
    """USD for a million warm starts: their messages, claims and function runs."""
    starts = 1_000_000
    gb = blueprint.FN_WORKER_CONTROL.memory_mb / 1024
    return (
        prices.millions("sqs_fifo", 3 * starts)
        + prices.millions("sqs_standard", 3 * starts)
        + prices.millions("invocation", starts)
        + prices.each("lambda_gb_second", starts * COMMAND_RUN_S * gb)
    )
