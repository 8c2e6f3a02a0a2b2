"""The metrics that alarms and dashboard look at: our own (EMF) and those of the services."""

from __future__ import annotations

from dataclasses import dataclass

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_elasticloadbalancingv2 as elb
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sqs as sqs

from infra.config import Environment, Flavour
from infra.handles import NAMESPACE, Cache, Queues
from infra.permissions import Role
from muster import blueprint

#: Which functions emit a metric. Powertools makes the function its one dimension; never a user id.
EMITTED_BY = {
    "PoolHit": (Role.WORKER_CONTROL,),
    "PoolMiss": (Role.WORKER_CONTROL,),
    "GivenUp": (Role.WORKER_CONTROL, Role.MAINTENANCE_WORKER),
    "Restarts": (Role.MAINTENANCE_WORKER,),
    "Unaccounted": (Role.MAINTENANCE_WORKER,),
    "SweepSeconds": (Role.MAINTENANCE,),
    "SweepUsers": (Role.MAINTENANCE,),
    "OrphansStopped": (Role.MAINTENANCE,),
    **{
        f"Workers{phase}": (Role.MAINTENANCE_WORKER,)
        for phase in ("Starting", "Connecting", "Ready", "Draining", "BackingOff", "Failed")
    },
    "JobsQueued": (Role.MAINTENANCE_WORKER,),
    "JobsRunning": (Role.MAINTENANCE_WORKER,),
    "JobsPoisoned": (Role.MAINTENANCE_WORKER,),
    "JobsOldestSeconds": (Role.MAINTENANCE_WORKER,),
    "PoolIdle": (Role.POOL_MANAGER,),
    "PoolTarget": (Role.POOL_MANAGER,),
    "FillChecks": (Role.ORDER_TASKS,),
}


@dataclass(frozen=True, slots=True)
class Metrics:
    environment: Environment
    queues: Queues
    cache: Cache
    functions: dict[Role, lambda_.Function]
    targets: elb.ApplicationTargetGroup
    cluster: str

    def own(self, name: str, statistic: str, *, minutes: int = 1) -> cloudwatch.IMetric:
        """A metric the functions emit, over all that do."""
        period = cdk.Duration.minutes(minutes)
        parts = [
            cloudwatch.Metric(
                namespace=NAMESPACE,
                metric_name=name,
                dimensions_map={"service": emitter.value},
                statistic=statistic,
                period=period,
                label=name,
            )
            for emitter in EMITTED_BY[name]
        ]
        if len(parts) == 1:
            return parts[0]
        ids = [f"{name[0].lower()}{name[1:]}{index}" for index in range(len(parts))]
        return cloudwatch.MathExpression(
            expression=" + ".join(f"FILL({metric_id}, 0)" for metric_id in ids),
            using_metrics=dict(zip(ids, parts, strict=True)),
            period=period,
            label=name,
        )

    def differs(self) -> cloudwatch.MathExpression:
        """Orders of which worker and broker said different things, found by whoever came second: the function
        that checks, or the worker."""
        period = cdk.Duration.minutes(5)
        return cloudwatch.MathExpression(
            expression="FILL(checks, 0) + FILL(workers, 0)",
            using_metrics={
                name: cloudwatch.Metric(
                    namespace=NAMESPACE,
                    metric_name="FillChecks",
                    dimensions_map={"outcome": "differs", "service": service},
                    statistic="Sum",
                    period=period,
                )
                for name, service in (("checks", Role.ORDER_TASKS.value), ("workers", Role.WORKER.value))
            },
            period=period,
            label="orders that differ",
        )

    def start_latency(self, via: str, statistic: str) -> cloudwatch.Metric:
        """From command to ready, as the workers measure it."""
        return cloudwatch.Metric(
            namespace=NAMESPACE,
            metric_name="StartLatency",
            dimensions_map={"via": via},
            statistic=statistic,
            period=cdk.Duration.minutes(1),
            label=f"{via} {statistic}",
        )

    def leases_lost(self) -> cloudwatch.Metric:
        """Counted from the workers' log."""
        return cloudwatch.Metric(
            namespace=NAMESPACE, metric_name="LeasesLost", statistic="Sum", period=cdk.Duration.minutes(5)
        )

    def tasks(self, name: str) -> cloudwatch.Metric:
        """A count of container insights over the whole cluster."""
        return cloudwatch.Metric(
            namespace="ECS/ContainerInsights",
            metric_name=name,
            dimensions_map={"ClusterName": self.cluster},
            statistic="Maximum",
            period=cdk.Duration.minutes(1),
            label=name,
        )

    def visible(self, queue: sqs.Queue) -> cloudwatch.Metric:
        return queue.metric_approximate_number_of_messages_visible(
            period=cdk.Duration.minutes(1), statistic="Maximum"
        )

    def age(self, queue: sqs.Queue) -> cloudwatch.Metric:
        return queue.metric_approximate_age_of_oldest_message(
            period=cdk.Duration.minutes(1), statistic="Maximum"
        )

    def oldest_in_visibilities(self) -> cloudwatch.MathExpression:
        """Age of the oldest message as a multiple of its queue's visibility timeout, the worst of both."""
        control = blueprint.WORKER_CONTROL.visibility.total_seconds()
        orders = blueprint.ORDER_TASKS.visibility.total_seconds()
        return cloudwatch.MathExpression(
            expression=f"MAX([control / {control:g}, orders / {orders:g}])",
            using_metrics={
                "control": self.age(self.queues.worker_control),
                "orders": self.age(self.queues.order_tasks),
            },
            period=cdk.Duration.minutes(1),
            label="oldest message, in visibility timeouts",
        )

    def functions_sum(self, name: str) -> cloudwatch.MathExpression:
        period = cdk.Duration.minutes(5)
        return cloudwatch.MathExpression(
            expression=" + ".join(f"FILL({role.value}, 0)" for role in self.functions),
            using_metrics={
                role.value: function.metric(name, statistic="Sum", period=period)
                for role, function in self.functions.items()
            },
            period=period,
            label=name,
        )

    def hit_rate(self) -> cloudwatch.MathExpression:
        """Share of starts that found a warm worker; with hardly any start it says nothing, so 100."""
        return cloudwatch.MathExpression(
            expression="IF(FILL(hits, 0) + FILL(misses, 0) > 10, "
            "100 * FILL(hits, 0) / (FILL(hits, 0) + FILL(misses, 0)), 100)",
            using_metrics={
                "hits": self.own("PoolHit", "Sum", minutes=5),
                "misses": self.own("PoolMiss", "Sum", minutes=5),
            },
            period=cdk.Duration.minutes(5),
            label="pool hit rate, %",
        )

    def valkey(self, name: str, statistic: str) -> cloudwatch.IMetric:
        """The worst node."""
        memorydb = self.environment.valkey is Flavour.MEMORYDB
        # An id must be its own within a graph, and a graph may show several of these.
        ids = [f"{name[0].lower()}{name[1:]}{index}" for index in range(len(self.cache.nodes))]
        return cloudwatch.MathExpression(
            expression=f"MAX([{', '.join(ids)}])",
            using_metrics={
                metric_id: cloudwatch.Metric(
                    namespace="AWS/MemoryDB" if memorydb else "AWS/ElastiCache",
                    metric_name=name,
                    dimensions_map={"ClusterName": self.cache.name, "NodeName": node}
                    if memorydb
                    else {"CacheClusterId": node},
                    statistic=statistic,
                    period=cdk.Duration.minutes(1),
                )
                for metric_id, node in zip(ids, self.cache.nodes, strict=True)
            },
            period=cdk.Duration.minutes(1),
            label=name,
        )

    def unhealthy_targets(self) -> cloudwatch.IMetric:
        return self.targets.metrics.unhealthy_host_count(statistic="Maximum", period=cdk.Duration.minutes(1))
