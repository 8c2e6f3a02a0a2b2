"""`/healthz`, `/readyz`, `/metrics`: for load balancers and monitors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastapi import APIRouter, Depends
from starlette.responses import PlainTextResponse

from api.access import of_nobody, of_the_fleet
from api.source import FleetSource, WorkerQuery, WorkerView
from muster.model import Phase, Via

_QUANTILES = (0.5, 0.95)
_MOST_READY = 1_000_000


def router(source: FleetSource) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz", summary="The process lives", dependencies=[Depends(of_nobody)])
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/readyz", summary="Everything it needs answers", dependencies=[Depends(of_nobody)])
    def readyz() -> dict[str, str]:
        source.check()
        return {"status": "ok"}

    @routes.get(
        "/metrics",
        summary="Prometheus text",
        response_class=PlainTextResponse,
        dependencies=[Depends(of_the_fleet)],
    )
    def metrics() -> PlainTextResponse:
        return PlainTextResponse(
            "\n".join(_lines(source)) + "\n", media_type="text/plain; version=0.0.4; charset=utf-8"
        )

    return routes


def _lines(source: FleetSource) -> Iterator[str]:
    yield from _gauge("muster_workers", "Users by phase.")
    for phase, count in source.counts().items():
        yield f'muster_workers{{phase="{phase.value}"}} {count}'
    pool = source.pool()
    yield from _gauge("muster_pool", "Warm workers by what they are.")
    for name in ("target", "idle", "outstanding", "launching"):
        yield f'muster_pool{{pool="{pool.name}",state="{name}"}} {getattr(pool, name)}'
    yield from _gauge("muster_queue_messages", "Messages by queue and what they are.")
    for queue in source.queues():
        yield f'muster_queue_messages{{queue="{queue.name}",state="waiting"}} {queue.depth}'
        yield f'muster_queue_messages{{queue="{queue.name}",state="in_flight"}} {queue.in_flight}'
        if queue.dead_letter is not None:
            yield f'muster_queue_messages{{queue="{queue.name}",state="dead_letter"}} {queue.dead_letter}'
    # A gauge of the workers that are ready now: a histogram would need counters that no process can keep.
    yield from _gauge("muster_start_latency_seconds", "Command to ready, of the workers that are ready now.")
    ready = source.workers(WorkerQuery(phase=Phase.READY, limit=_MOST_READY)).workers
    for via in Via:
        latencies = _latencies(ready, via)
        for share in _QUANTILES if latencies else ():
            value = latencies[min(len(latencies) - 1, int(share * len(latencies)))]
            yield f'muster_start_latency_seconds{{via="{via.value}",quantile="{share}"}} {value / 1000}'


def _gauge(name: str, about: str) -> tuple[str, str]:
    return f"# HELP {name} {about}", f"# TYPE {name} gauge"


def _latencies(workers: Sequence[WorkerView], via: Via) -> list[int]:
    return sorted(
        w.start_latency_ms for w in workers if w.via == via.value and w.start_latency_ms is not None
    )
