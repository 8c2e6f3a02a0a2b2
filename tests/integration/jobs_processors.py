"""Processors that misbehave on purpose."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path


def crash(job, ctx):
    os.kill(os.getpid(), signal.SIGSEGV)


def leave(job, ctx):
    sys.exit(7)


def vanish(job, ctx):
    os._exit(9)


def killed(job, ctx):
    os.kill(os.getpid(), signal.SIGKILL)


def forever(job, ctx):
    while True:
        pass


def deaf(job, ctx):
    """Hogs the interpreter and never looks whether it was cancelled, until a file tells it to end."""
    if "begun" in job.data:
        Path(job.data["begun"]).touch()
    while not Path(job.data["until"]).exists():
        sum(range(20_000))
    return "ended by itself"


def greedy(job, ctx):
    hoard = []
    while True:
        hoard.append(bytearray(8 * 2**20))
        time.sleep(0.002)


def unspeakable(job, ctx):
    return {"not": {"json"}}


async def gentle(job, ctx):
    await asyncio.sleep(0.01)
    return {"async": job.data}


def steps(job, ctx):
    """Ten steps with a checkpoint each; stands at step 5 of the first attempt until it has to leave."""
    start = ctx.resume_from["step"] if ctx.resume_from else 0
    for step in range(start, 10):
        ctx.checkpoint({"step": step}, step / 10, f"step {step}")
        while step == 5 and not ctx.resume_from:
            ctx.check()
            time.sleep(0.01)
    return {"started_at": start}
