"""The hooks the four machines name: theirs, on Muster's backends, with two small actions of our own."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

from flatmachines import DistributedWorkerHooks, FlatMachine, HooksRegistry

from muster.jobs.flatmachines import AsyncJobs

HERE = Path(__file__).parent


class PoolHooks(DistributedWorkerHooks):
    """Everything about pools and workers is inherited."""

    async def on_action(self, state_name: str, action: str, context: dict[str, Any]) -> dict[str, Any]:
        if action == "echo":
            return await self._echo(context)
        if action == "plan_workers":
            return await self._plan_workers(context)
        if action == "fail_job":
            context["error"] = context.get("last_error")  # where the engine leaves it
        context = await super().on_action(state_name, action, context)
        if action == "list_stale_workers":
            context["stale_workers"] = context["workers"]  # the name the reaping action reads
        return context

    async def _plan_workers(self, context: dict[str, Any]) -> dict[str, Any]:
        """Their calculation, with a name for every worker to come."""
        context = await self._calculate_spawn(context)
        context["spawn_list"] = [
            {"pool_id": context["pool_id"], "worker_id": f"worker-{uuid.uuid4().hex[:8]}"}
            for _ in context["spawn_list"]
        ]
        return context

    async def _echo(self, context: dict[str, Any]) -> dict[str, Any]:
        job = context["job"]
        if "fail" in job:
            raise RuntimeError(job["fail"])
        await asyncio.sleep(job.get("delay_s", 0))
        context["echo"] = job
        return context


def machine(name: str, jobs: AsyncJobs) -> FlatMachine:
    """One of the machines of this folder, ready to `await machine(...).execute(input=...)`."""
    registry = HooksRegistry()
    registry.register("pool", lambda: PoolHooks(registration=jobs.registration, work=jobs.work))
    return FlatMachine(config_file=str(HERE / f"{name}.yml"), hooks_registry=registry)
