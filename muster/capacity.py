"""How many workers one instance holds, by arithmetic alone, and what happens when things go wrong on it."""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

from muster import blueprint

#: An instance registers less memory than its type's name promises: 7985 of 8192 MiB were seen. Without a
#: figure of one's own (`registeredResources` of DescribeContainerInstances) this share is assumed.
REGISTERED_SHARE = 7985 / 8192
#: A Linux bridge has this many ports; every bridge task takes one.
BRIDGE_PORTS = 1023
#: What the ECS image allows a host: processes and threads in all, and open files of one container.
HOST_PIDS = 32768
CONTAINER_FILES = 32768
#: One worker: its threads (main, heart, stream, two of the websocket) with the shim's, and its open files.
PIDS_PER_TASK = 5 + 12
FILES_PER_TASK = 16


@dataclass(frozen=True, slots=True)
class Bound:
    """One thing that ends the room on an instance."""

    name: str
    room: int
    arithmetic: str


@dataclass(frozen=True, slots=True)
class Room:
    """What one instance holds under a profile."""

    profile: str
    fleet: blueprint.WorkerFleet
    registered_mb: int
    bounds: tuple[Bound, ...]

    @property
    def tightest(self) -> Bound:
        return min(self.bounds, key=lambda bound: bound.room)

    @property
    def fits(self) -> bool:
        return self.fleet.tasks_per_instance <= self.tightest.room

    @property
    def headroom(self) -> int:
        """Tasks that would still fit above the planned number."""
        return self.tightest.room - self.fleet.tasks_per_instance

    @property
    def free_mb(self) -> int:
        """Memory for tasks that the planned number does not reserve."""
        task = self.fleet.task
        return self.for_tasks_mb - self.fleet.tasks_per_instance * task.soft_memory_mb

    @property
    def for_tasks_mb(self) -> int:
        return self.registered_mb - self.fleet.host_overhead_mb

    @property
    def at_hard_limit(self) -> int:
        """How many tasks may grow to their hard limit while all others use what they reserve."""
        task, planned = self.fleet.task, self.fleet.tasks_per_instance
        return max(0, min(planned, self.free_mb // (task.hard_memory_mb - task.soft_memory_mb)))

    @property
    def refill_s(self) -> float:
        """How long the call budget takes to start all users of a lost instance somewhere else."""
        calls = blueprint.ECS_MUTATE
        return max(0.0, (self.fleet.tasks_per_instance - calls.burst) / calls.per_second)


def room(profile: str, registered_mb: int | None = None) -> Room:
    """The room on one instance of `profile`; `registered_mb` as ECS says it, else an estimate."""
    fleet = blueprint.WORKER_PROFILES[profile]
    host, task = fleet.instance, fleet.task
    memory = registered_mb if registered_mb is not None else floor(host.memory_mb * REGISTERED_SHARE)
    for_tasks = memory - fleet.host_overhead_mb
    return Room(
        profile,
        fleet,
        memory,
        (
            Bound("CPU units", host.cpu_units // task.cpu_units, f"{host.cpu_units} / {task.cpu_units}"),
            Bound(
                "soft memory",
                max(0, for_tasks // task.soft_memory_mb),
                f"({memory} registered - {fleet.host_overhead_mb} for the host) / {task.soft_memory_mb} MB",
            ),
            Bound("bridge ports", BRIDGE_PORTS, "one per task; no network interface and no host port"),
            Bound("processes", HOST_PIDS // PIDS_PER_TASK, f"{HOST_PIDS} / {PIDS_PER_TASK}"),
        ),
    )
