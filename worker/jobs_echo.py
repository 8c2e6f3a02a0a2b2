"""The processor `echo`: gives back what it got, after a delay. Proves the machinery with a trivial job."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from muster.jobs import WorkItem
from worker.jobs_context import Context

_STEP_S = 0.05


def run(job: WorkItem, ctx: Context) -> Any:
    """`{"delay_s": 2, ...}` waits two seconds, with progress; `{"fail": "why"}` fails."""
    data = job.data if isinstance(job.data, dict) else {}
    if not data:
        return job.data
    if "fail" in data:
        raise RuntimeError(str(data["fail"]))
    delay = float(data.get("delay_s", 0.0))
    begun = time.monotonic()
    while (spent := time.monotonic() - begun) < delay:
        ctx.check()
        ctx.progress(spent / delay, f"{spent:.1f} of {delay:.1f} s")
        time.sleep(min(_STEP_S, delay - spent))
    return data


async def run_async(job: WorkItem, ctx: Context) -> Any:
    """The same without blocking: what an async processor looks like."""
    await asyncio.sleep(0)
    return run(job, ctx)
