"""ECS as documented and as reported: slow, failed, lost, PROVISIONING and never-starting tasks, throttling,
stale answers, late and repeated events, hosts that drain or vanish. The real `EcsLauncher` talks to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from muster.blueprint import INSTANCE_DRAINING, TASK_STOPPED, WORKERS, CallBucket
from muster.budget import Priority

if TYPE_CHECKING:
    from sim.workers import SimWorker
    from sim.world import World

#: The account is shared: what is left of the real buckets (100 at 40/s, 100 at 20/s) for this deployment.
SIM_MUTATE = CallBucket("ecs-mutate", 20, 4)
SIM_READ = CallBucket("ecs-read", 20, 2)
VISIBLE_S = 3600.0


@dataclass(slots=True)
class SimTask:
    """One task and its whole past, so that a stale answer can be given."""

    arn: str
    environ: dict[str, str]
    tags: list[dict[str, str]]
    started_by: str
    created: float
    host: str
    past: list[tuple[float, str]] = field(default_factory=list)
    desired: str = "RUNNING"
    started: float | None = None
    stopped: float | None = None
    reason: str = ""
    exit_code: int | None = None
    worker: SimWorker | None = None

    @property
    def status(self) -> str:
        return self.past[-1][1]

    def status_at(self, when: float) -> str | None:
        seen = [status for at, status in self.past if at <= when]
        return seen[-1] if seen else None


@dataclass(slots=True)
class Bucket:
    """The service's own token bucket, refilled by the clock."""

    spec: CallBucket
    tokens: float
    at: float

    def take(self, now: float) -> bool:
        self.tokens = min(self.spec.burst, self.tokens + (now - self.at) * self.spec.per_second)
        self.at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


class EcsWorld:
    """The cluster. Faults set the knobs; `next_launches` scripts what becomes of the launches to come."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.tasks: dict[str, SimTask] = {}
        self.answers: dict[str, dict[str, Any]] = {}  #: clientToken -> original answer
        self.hosts: dict[str, str] = {f"host-{n}": "ACTIVE" for n in (1, 2, 3)}
        self.next_launches: list[tuple[str, float]] = []
        self.next_events: list[str] = []
        self.throttled_until = 0.0
        self.blind_until = 0.0  #: DescribeTasks is throttled
        self.stale_until = 0.0
        self.lag = 0.0
        self.calls: list[tuple[float, str, Priority]] = []
        now = world.loop.now
        self._mutate = Bucket(SIM_MUTATE, SIM_MUTATE.burst, now)
        self._read = Bucket(SIM_READ, SIM_READ.burst, now)

    def client(self, priority: Priority) -> EcsClient:
        return EcsClient(self, priority)

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        token = request["clientToken"]
        if token in self.answers:
            return self._answer_again(self.answers[token])
        plan, amount = self.next_launches.pop(0) if self.next_launches else ("run", 0.0)
        if plan == "failures":  # ECS says that it failed; a phantom of it may run all the same
            if amount > 0.5:
                self._create(request, "run", 0.0)
            answer: dict[str, Any] = {"tasks": [], "failures": [{"reason": "RESOURCE:MEMORY"}]}
        else:
            answer = {"tasks": [{"taskArn": self._create(request, plan, amount).arn}], "failures": []}
        self.answers[token] = answer
        if plan == "answer_lost":
            raise _error("ServerException", "no answer", "RunTask")
        return self._answer_again(answer)

    def _answer_again(self, answer: dict[str, Any]) -> dict[str, Any]:
        tasks = [self.view(self.tasks[task["taskArn"]], self.world.loop.now) for task in answer["tasks"]]
        return {"tasks": tasks, "failures": answer["failures"]}

    def _create(self, request: dict[str, Any], plan: str, amount: float) -> SimTask:
        rng, loop = self.world.rng, self.world.loop
        active = [host for host, state in self.hosts.items() if state == "ACTIVE"]
        environment = _environment(request)
        task = SimTask(
            arn=f"arn:task/{len(self.tasks) + 1:04d}",
            environ={pair["name"]: pair["value"] for pair in environment},
            tags=request["tags"],
            started_by=request["startedBy"],
            created=loop.now,
            host=rng.choice(active) if active else "",
        )
        self.tasks[task.arn] = task
        self._set(task, "PROVISIONING")
        delay = rng.uniform(0.4, 3.0)
        if plan == "slow":
            delay += amount
        if not active:
            delay += 120.0
        if plan == "never":
            return task
        if plan == "fail":
            loop.after(delay, lambda: self.ended(task, None, "CannotPullContainerError"))
        else:
            loop.after(delay, lambda: self._start(task))
        return task

    def _start(self, task: SimTask) -> None:
        if task.status == "STOPPED":
            return
        if self.hosts.get(task.host) != "ACTIVE":
            active = [host for host, state in self.hosts.items() if state == "ACTIVE"]
            if not active:
                self.world.loop.after(30.0, lambda: self._start(task))
                return
            task.host = active[0]
        task.started = self.world.loop.now
        self._set(task, "RUNNING")
        task.worker = self.world.start_worker(task)

    def stop(self, arn: str, reason: str, priority: Priority) -> None:
        task = self.tasks.get(arn)
        if task is None or task.status == "STOPPED":
            raise _error("InvalidParameterException", "The referenced task was not found.", "StopTask")
        if task.desired == "STOPPED":
            return
        self.world.audit("stopping", task, priority, reason)
        self.world.trace("ecs", "stop", arn, reason)
        task.desired, task.reason = "STOPPED", reason
        loop = self.world.loop
        if task.worker is None:
            loop.after(1.0, lambda: self.ended(task, None, reason))
            return
        task.worker.terminate()
        grace = WORKERS.stop_timeout.total_seconds()
        loop.after(grace, lambda: self._kill(task, 137, reason))

    def _kill(self, task: SimTask, code: int, reason: str) -> None:
        if task.status != "STOPPED":
            if task.worker is not None:
                task.worker.kill()
            self.ended(task, code, reason)

    def ended(self, task: SimTask, code: int | None, reason: str, *, told: bool = True) -> None:
        """The task is over; ECS knows, and tells whoever listens (late, twice or never)."""
        if task.status == "STOPPED":
            return
        task.stopped, task.exit_code = self.world.loop.now, code
        task.reason = task.reason or reason
        task.desired = "STOPPED"
        self._set(task, "STOPPED")
        if told:
            self._tell(task)

    def _tell(self, task: SimTask) -> None:
        detail: dict[str, Any] = {
            "taskArn": task.arn,
            TASK_STOPPED.status_field: TASK_STOPPED.status,
            "stoppedReason": task.reason,
            "containers": [] if task.exit_code is None else [{"exitCode": task.exit_code}],
        }
        event = {"detail-type": TASK_STOPPED.detail_type, "detail": detail}
        fault = self.next_events.pop(0) if self.next_events else ""
        if fault == "lost":
            return
        delay = self.world.rng.uniform(20.0, 200.0) if fault == "late" else self.world.rng.uniform(0.1, 1.5)
        for _ in range(2 if fault == "twice" else 1):
            self.world.loop.after(delay, lambda: self.world.functions.invoke("maintenance_worker", event))
            delay += self.world.rng.uniform(0.0, 60.0)

    def lose_host(self, host: str, *, silent: bool) -> None:
        """Power off. `silent`: the agent is only disconnected, so ECS shows its tasks RUNNING for long."""
        if self.hosts.get(host) not in ("ACTIVE", "DRAINING"):
            return
        self.hosts[host] = "LOST"
        notice = self.world.rng.uniform(240.0, 400.0) if silent else self.world.rng.uniform(5.0, 90.0)
        for task in self.tasks.values():
            if task.host == host and task.status == "RUNNING":
                if task.worker is not None:
                    task.worker.kill()
                self._end_later(task, notice)
        self.world.loop.after(self.world.rng.uniform(60.0, 120.0), self.add_host)

    def _end_later(self, task: SimTask, seconds: float) -> None:
        self.world.loop.after(seconds, lambda: self.ended(task, None, "Host EC2 terminated"))

    def add_host(self) -> None:
        self.hosts[f"host-{len(self.hosts) + 1}"] = "ACTIVE"

    def drain(self, host: str) -> None:
        if self.hosts.get(host) != "ACTIVE":
            return
        self.hosts[host] = "DRAINING"
        detail = {"containerInstanceArn": host, INSTANCE_DRAINING.status_field: INSTANCE_DRAINING.status}
        event = {"detail-type": INSTANCE_DRAINING.detail_type, "detail": detail}
        loop = self.world.loop
        loop.after(0.5, lambda: self.world.functions.invoke("maintenance_worker", event))
        loop.after(60.0, self.add_host)
        loop.after(self.world.rng.uniform(200.0, 400.0), lambda: self.lose_host(host, silent=False))

    def _set(self, task: SimTask, status: str) -> None:
        task.past.append((self.world.loop.now, status))
        self.world.trace("ecs", status, task.arn)

    def view(self, task: SimTask, when: float) -> dict[str, Any]:
        status = task.status_at(when) or "PROVISIONING"
        view: dict[str, Any] = {
            "taskArn": task.arn,
            "lastStatus": status,
            "desiredStatus": task.desired,
            "createdAt": datetime.fromtimestamp(task.created, UTC),
            "tags": task.tags,
            "containers": [] if task.exit_code is None else [{"exitCode": task.exit_code}],
        }
        if task.started is not None:
            view["startedAt"] = datetime.fromtimestamp(task.started, UTC)
        if status == "STOPPED":
            view["stoppedReason"] = task.reason
        return view

    def seen_at(self) -> float:
        """Eventually consistent: answers may be of a little while ago."""
        now = self.world.loop.now
        return now - self.lag if self.stale_until > now else now

    def pay(self, bucket: Bucket, name: str, priority: Priority) -> None:
        now = self.world.loop.now
        self.calls.append((now, name, priority))
        self.world.audit("called", bucket.spec.name, priority)
        if self.throttled_until > now or not bucket.take(now):
            self.world.count("ecs throttled")
            raise _error("ThrottlingException", "Rate exceeded", name)

    def living(self) -> list[SimTask]:
        return [task for task in self.tasks.values() if task.status != "STOPPED"]


class EcsClient:
    """The boto3 client: only what `EcsLauncher` calls."""

    def __init__(self, ecs: EcsWorld, priority: Priority) -> None:
        self._ecs = ecs
        self._priority = priority

    def _effect(self, name: str, bucket: Bucket, do: Callable[[], Any]) -> Any:
        def call() -> Any:
            self._ecs.pay(bucket, name, self._priority)
            return do()

        lost = lambda: _error("ServerException", "no answer", name)  # noqa: E731
        return self._ecs.world.effect("ecs", name, call, lost=lost)

    def run_task(self, **request: Any) -> Any:
        repairs = {"name": "MUSTER_CAUSE", "value": "repair"} in _environment(request)
        self._ecs.world.audit("launching", repairs, self._priority)
        return self._effect("RunTask", self._ecs._mutate, lambda: self._ecs.run(request))

    def stop_task(self, **request: Any) -> Any:
        def stop() -> None:
            self._ecs.stop(request["task"], request["reason"], self._priority)

        return self._effect("StopTask", self._ecs._mutate, stop)

    def describe_tasks(self, **request: Any) -> Any:
        ecs = self._ecs

        def describe() -> Any:
            now = ecs.world.loop.now
            if ecs.blind_until > now:
                raise _error("ThrottlingException", "Rate exceeded", "DescribeTasks")
            when, tasks, failures = ecs.seen_at(), [], []
            for arn in request["tasks"]:
                task = ecs.tasks.get(arn)
                gone = task is None or (task.stopped is not None and task.stopped + VISIBLE_S < now)
                if task is None or gone or task.status_at(when) is None:
                    failures.append({"arn": arn, "reason": "MISSING"})
                else:
                    tasks.append(ecs.view(task, when))
            return {"tasks": tasks, "failures": failures}

        return self._effect("DescribeTasks", ecs._read, describe)

    def list_tasks(self, **request: Any) -> Any:
        ecs = self._ecs

        def listing() -> Any:
            when = ecs.seen_at()
            arns = [
                task.arn
                for task in ecs.tasks.values()
                if task.status_at(when) not in (None, "STOPPED")
                and (task.desired == "RUNNING" or when < ecs.world.loop.now)
                and task.started_by == request.get("startedBy", task.started_by)
                and task.host == request.get("containerInstance", task.host)
            ]
            return {"taskArns": arns}

        return self._effect("ListTasks", ecs._read, listing)


def _environment(request: dict[str, Any]) -> list[dict[str, str]]:
    """What a RunTask gives its task."""
    given: list[dict[str, str]] = request["overrides"]["containerOverrides"][0]["environment"]
    return given


def _error(code: str, message: str, call: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}, "ResponseMetadata": {}}, call)
