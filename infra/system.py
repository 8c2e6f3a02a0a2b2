"""The whole system of one environment: the stacks, in the order they build on each other."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk

from infra.api_service import ApiServiceStack
from infra.cluster import ClusterStack
from infra.config import Environment, Flavour
from infra.control_plane import ControlPlaneStack
from infra.handles import Cache, Fleet
from infra.metrics import Metrics
from infra.network import NetworkStack
from infra.observability import ObservabilityStack
from infra.permissions import Role
from infra.queues import QueuesStack
from infra.state import StateStack


def build(app: cdk.App, environment: Environment, code: Path) -> None:
    """Add every stack of `environment` to `app`. `code` is the functions' zip."""
    # The account comes from the credentials at deployment; a Region alone needs no lookup.
    place = cdk.Environment(region=environment.region)

    def named(part: str) -> str:
        return environment.named(f"muster-{part}")

    queues = QueuesStack(app, named("queues"), environment=environment, env=place).queues
    if environment.local:
        ControlPlaneStack(
            app,
            named("control-plane"),
            environment=environment,
            code=code,
            queues=queues,
            cache=local_cache(),
            fleet=local_fleet(environment),
            placement=None,
            env=place,
        )
        return

    network = NetworkStack(app, named("network"), environment=environment, env=place)
    cache = StateStack(app, named("state"), environment=environment, network=network, env=place).cache
    cluster = ClusterStack(
        app,
        named("cluster"),
        environment=environment,
        network=network,
        queues=queues,
        cache=cache,
        env=place,
    )
    control_plane = ControlPlaneStack(
        app,
        named("control-plane"),
        environment=environment,
        code=code,
        queues=queues,
        cache=cache,
        fleet=cluster.fleet,
        placement=network.functions,
        env=place,
    )
    api = ApiServiceStack(
        app,
        named("api"),
        environment=environment,
        network=network,
        cluster=cluster,
        queues=queues,
        cache=cache,
        pool_manager=control_plane.functions[Role.POOL_MANAGER],
        env=place,
    )
    ObservabilityStack(
        app,
        named("observability"),
        environment=environment,
        metrics=Metrics(
            environment, queues, cache, control_plane.functions, api.targets, cluster.fleet.cluster_name
        ),
        env=place,
    )


def local_cache() -> Cache:
    """The server the local engine runs: no TLS, no users."""
    return Cache(
        flavour=Flavour.LOCAL.value,
        name="local",
        url="redis://127.0.0.1:6379/0",
        cluster_mode=False,
        nodes=[],
        users={},
        connect={},
    )


def local_fleet(environment: Environment) -> Fleet:
    """A cluster that is only a name: on one machine workers are processes."""
    name = environment.named("muster")
    arn = f"arn:aws:ecs:{environment.region}:000000000000"
    return Fleet(
        cluster_name=name,
        cluster_arn=f"{arn}:cluster/{name}",
        capacity_provider=environment.named("workers"),
        task_definition_arn=f"{arn}:task-definition/{environment.named('worker')}:1",
        job_task_definition_arn=f"{arn}:task-definition/{environment.named('job-worker')}:1",
        job_task_definition_arns=f"{arn}:task-definition/{environment.named('job-worker')}:*",
        container="worker",
        version="local",
        task_arns=f"{arn}:task/{name}/*",
        passed_roles=[f"arn:aws:iam::000000000000:role/{environment.named('worker')}"],
    )
