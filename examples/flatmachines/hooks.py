"""The hooks the machines name: theirs, on Muster's backends, with a heartbeat and two small actions."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from pathlib import Path
from typing import Any

import yaml
from flatmachines import (
    DistributedWorkerHooks,
    FlatMachine,
    HooksRegistry,
    RegistrationBackend,
    WorkerRegistration,
)
from flatmachines.actions import MachineInvoker

from muster.jobs.flatmachines import AsyncJobs

HERE = Path(__file__).parent
log = logging.getLogger(__name__)


class Heart:
    """Says that a worker is alive, from a thread of its own: a job may hold up the event loop."""

    def __init__(self, registration: RegistrationBackend, worker_id: str, interval: float) -> None:
        self._registration, self._worker_id, self._interval = registration, worker_id, interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heart of {worker_id}", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        with asyncio.Runner() as runner:
            while not self._stopped.wait(self._interval):
                try:
                    runner.run(self._registration.heartbeat(self._worker_id))
                except KeyError:
                    log.warning("%s was declared lost; what it still hands in is dropped", self._worker_id)
                    return
                except Exception as error:  # noqa: BLE001 - a backend may be away for a moment
                    log.warning("heartbeat of %s failed, the next one may not: %s", self._worker_id, error)

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class PoolHooks(DistributedWorkerHooks):
    """Everything about pools and workers is inherited. One per state of a machine: hearts are shared."""

    def __init__(self, jobs: AsyncJobs, interval: float, hearts: dict[str, Heart]) -> None:
        super().__init__(registration=jobs.registration, work=jobs.work)
        self._interval = interval
        self._hearts = hearts

    async def on_action(self, state_name: str, action: str, context: dict[str, Any]) -> dict[str, Any]:
        if action == "echo":
            return await self._echo(context)
        if action == "plan_workers":
            return await self._plan_workers(context)
        if action == "fail_job":
            context["error"] = context.get("last_error")  # where the engine leaves it
        if action == "deregister_worker":
            await self._stop(context["worker_id"])
        context = await super().on_action(state_name, action, context)
        if action == "register_worker":
            await self._stop(context["worker_id"])  # of a life before, under the same id
            self._hearts[context["worker_id"]] = Heart(
                self._registration, context["worker_id"], self._interval
            )
        if action == "list_stale_workers":
            context["stale_workers"] = context["workers"]  # the name the reaping action reads
        return context

    async def on_error(self, state_name: str, error: Exception, context: dict[str, Any]) -> str | None:
        """One of our own actions failed: the worker ends here, so nobody may say that it is alive."""
        await self._stop(context.get("worker_id", ""))
        return super().on_error(state_name, error, context)

    async def _stop(self, worker_id: str) -> None:
        if heart := self._hearts.pop(worker_id, None):
            await asyncio.to_thread(heart.stop)

    async def _plan_workers(self, context: dict[str, Any]) -> dict[str, Any]:
        """Their calculation, with a name for every worker to come. Each is registered before it is launched:
        the next check counts it, and the reaper finds the one that never came."""
        context = await self._calculate_spawn(context)
        context["spawn_list"] = [
            {"pool_id": context["pool_id"], "worker_id": f"worker-{uuid.uuid4().hex[:8]}"}
            for _ in context["spawn_list"]
        ]
        for worker in context["spawn_list"]:
            await self._registration.register(WorkerRegistration(worker["worker_id"]))
        return context

    async def _echo(self, context: dict[str, Any]) -> dict[str, Any]:
        job = context["job"]
        if "fail" in job:
            raise RuntimeError(job["fail"])
        await asyncio.sleep(job.get("delay_s", 0))
        context["echo"] = job
        return context


class Machine(FlatMachine):
    """The engine, and `foreach` with `launch`: its own foreach knows only machines that it waits for."""

    async def _execute_state(
        self, state_name: str, context: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        state = self.states.get(state_name, {})
        if "foreach" not in state or "launch" not in state:
            return await super()._execute_state(state_name, context)
        seen = {"context": context, "input": context}
        for item in self._render_template(state["foreach"], seen):
            told = self._render_dict(state["launch_input"], seen | {state["as"]: item})
            await self._launch_fire_and_forget([state["launch"]], told)
        return context, None


def machine(
    name: str, jobs: AsyncJobs, invoker: MachineInvoker | None = None, folder: Path = HERE
) -> FlatMachine:
    """One of the machines of the folder, ready to `await machine(...).execute(input=...)`.

    What it launches are tasks of this process, for whose end the engine waits after the last state; another
    `invoker` may start them elsewhere.
    """
    worker = yaml.safe_load((folder / "job_worker.yml").read_text(encoding="utf-8"))
    interval = float(worker["data"]["settings"]["heartbeat_interval"])
    hearts: dict[str, Heart] = {}
    registry = HooksRegistry()
    registry.register("pool", lambda: PoolHooks(jobs, interval, hearts))
    return Machine(config_file=str(folder / f"{name}.yml"), hooks_registry=registry, invoker=invoker)
