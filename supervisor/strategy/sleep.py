"""Step 8: sleep until the next cycle is due, or the worker is asked to leave."""

from __future__ import annotations

from worker.cycle import Context


async def sleep(ctx: Context) -> None:
    """The pause is counted from the start of the cycle, so a slow market does not shift the rhythm."""
    ctx.progress("sleeping")
    await ctx.rest()
