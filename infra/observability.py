"""What a person sees: alarms by mail, each with its page, and one dashboard."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from infra.alarms import Alarm, alarms
from infra.config import Environment
from infra.metrics import Metrics
from muster import blueprint


class ObservabilityStack(cdk.Stack):
    def __init__(
        self, scope: Construct, name: str, *, environment: Environment, metrics: Metrics, **options: Any
    ) -> None:
        super().__init__(scope, name, **options)
        self._environment = environment
        self._metrics = metrics
        # No customer key: alarms would be silent unless its policy also allowed CloudWatch to use it.
        self.topic = sns.Topic(
            self,
            "Alerts",
            topic_name=environment.named(blueprint.ALERTS_TOPIC),
            enforce_ssl=True,
        )
        if environment.alert_email:
            self.topic.add_subscription(subscriptions.EmailSubscription(environment.alert_email))
        for alarm in alarms(metrics):
            self._alarm(alarm)
        self._dashboard()

    def _alarm(self, alarm: Alarm) -> None:
        made = cloudwatch.Alarm(
            self,
            alarm.runbook.removesuffix(".md").title().replace("-", ""),
            alarm_name=alarm.name.format(env=self._environment.name),
            alarm_description=f"{alarm.says} What to do: {self._environment.runbooks}/{alarm.runbook}",
            metric=alarm.metric,
            threshold=alarm.threshold,
            comparison_operator=alarm.comparison,
            evaluation_periods=alarm.periods,
            treat_missing_data=alarm.missing,
        )
        made.add_alarm_action(actions.SnsAction(self.topic))
        made.add_ok_action(actions.SnsAction(self.topic))

    def _dashboard(self) -> None:
        metrics, queues = self._metrics, self._metrics.queues

        def graph(title: str, *shown: cloudwatch.IMetric, width: int = 8) -> cloudwatch.GraphWidget:
            return cloudwatch.GraphWidget(title=title, left=list(shown), width=width)

        def functions(name: str) -> list[cloudwatch.IMetric]:
            return [
                function.metric(name, statistic="Sum", period=cdk.Duration.minutes(1), label=role.value)
                for role, function in metrics.functions.items()
            ]

        dashboard = cloudwatch.Dashboard(
            self,
            "Dashboard",
            dashboard_name=self._environment.named("muster"),
            default_interval=cdk.Duration.hours(3),
        )
        dashboard.add_widgets(
            cloudwatch.SingleValueWidget(
                title="worker-control-dlq",
                metrics=[metrics.visible(queues.worker_control_dlq)],
                width=12,
            ),
            cloudwatch.SingleValueWidget(
                title="order-tasks-dlq", metrics=[metrics.visible(queues.order_tasks_dlq)], width=12
            ),
        )
        dashboard.add_widgets(
            graph(
                "Start latency, median and p99",
                *(
                    metrics.start_latency(via, statistic)
                    for via in ("warm", "cold")
                    for statistic in ("p50", "p99")
                ),
            ),
            graph(
                "Pool: idle against target",
                metrics.own("PoolIdle", "Average"),
                metrics.own("PoolTarget", "Average"),
            ),
            graph("Pool hit rate", metrics.hit_rate()),
        )
        dashboard.add_widgets(
            graph(
                "Workers by phase",
                *(
                    metrics.own(f"Workers{phase}", "Sum")
                    for phase in ("Starting", "Connecting", "Ready", "Draining", "BackingOff", "Failed")
                ),
            ),
            graph(
                "Tasks: all, and waiting for an instance",
                metrics.tasks("TaskCount"),
                metrics.tasks("PendingTaskCount"),
            ),
            graph(
                "Repairs",
                *(
                    metrics.own(name, "Sum")
                    for name in ("Restarts", "OrphansStopped", "GivenUp", "Unaccounted")
                ),
                metrics.leases_lost(),
            ),
            graph("Sweeps", metrics.own("SweepSeconds", "Maximum"), metrics.own("SweepUsers", "Maximum")),
        )
        dashboard.add_widgets(
            graph(
                "Messages waiting",
                *(metrics.visible(q) for q in (queues.worker_control, queues.order_tasks, queues.pool_claim)),
            ),
            graph(
                "Age of the oldest message, s",
                metrics.age(queues.worker_control),
                metrics.age(queues.order_tasks),
            ),
            graph(
                "Jobs",
                *(metrics.own(name, "Maximum") for name in ("JobsQueued", "JobsRunning", "JobsPoisoned")),
            ),
        )
        dashboard.add_widgets(
            graph("Fill checks, and orders that differ", metrics.own("FillChecks", "Sum"), metrics.differs()),
            graph("Function calls", *functions("Invocations")),
            graph("Function errors and throttles", *functions("Errors"), *functions("Throttles")),
            graph(
                "Valkey",
                metrics.valkey("DatabaseMemoryUsagePercentage", "Maximum"),
                metrics.valkey("Evictions", "Sum"),
            ),
        )
