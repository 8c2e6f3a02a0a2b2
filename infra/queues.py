"""The blueprint's queues: encrypted, TLS only, each dead-letter queue beside the queue it serves."""

from __future__ import annotations

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.acknowledge import acknowledge
from infra.config import Environment
from infra.handles import Queues
from muster import blueprint


class QueuesStack(cdk.Stack):
    def __init__(self, scope: Construct, name: str, *, environment: Environment, **options: Any) -> None:
        super().__init__(scope, name, **options)
        made: dict[str, sqs.Queue] = {}
        for queue in blueprint.QUEUES:
            made[queue.name] = self._queue(queue, environment, made)
        acknowledge(
            made[blueprint.POOL_CLAIM.name],
            "AwsSolutions-SQS3",
            "A claim nobody took within its retention is stale: the sweep starts that user again. "
            "Keeping it would only replay a start that has been superseded.",
        )
        self.queues = Queues(
            worker_control=made[blueprint.WORKER_CONTROL.name],
            worker_control_dlq=made[blueprint.WORKER_CONTROL_DLQ.name],
            order_tasks=made[blueprint.ORDER_TASKS.name],
            order_tasks_dlq=made[blueprint.ORDER_TASKS_DLQ.name],
            pool_claim=made[blueprint.POOL_CLAIM.name],
        )

    def _queue(
        self, queue: blueprint.Queue, environment: Environment, made: dict[str, sqs.Queue]
    ) -> sqs.Queue:
        dead_letter = None
        if queue.dead_letter is not None and queue.max_receives is not None:
            dead_letter = sqs.DeadLetterQueue(
                queue=made[queue.dead_letter], max_receive_count=queue.max_receives
            )
        fifo: dict[str, Any] = {}
        if queue.fifo:
            # Commands carry their own deduplication id: by content, start, stop, start would lose the
            # third. Only a schedule cannot give one, and schedules send to order-tasks alone.
            # Scope and limit are per group: one busy user must not slow the others.
            fifo = {
                "fifo": True,
                "content_based_deduplication": queue.content_deduplication,
                "deduplication_scope": sqs.DeduplicationScope.MESSAGE_GROUP,
                "fifo_throughput_limit": sqs.FifoThroughputLimit.PER_MESSAGE_GROUP_ID,
            }
        return sqs.Queue(
            self,
            queue.name.removesuffix(".fifo").title().replace("-", ""),
            queue_name=environment.named(queue.name),
            visibility_timeout=cdk.Duration.seconds(int(queue.visibility.total_seconds())),
            retention_period=cdk.Duration.seconds(int(queue.retention.total_seconds())),
            dead_letter_queue=dead_letter,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            removal_policy=cdk.RemovalPolicy.DESTROY,
            **fifo,
        )
