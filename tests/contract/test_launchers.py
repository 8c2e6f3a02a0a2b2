"""One contract, four launchers: what holds for every `Launcher`, whatever runs the tasks."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ecs import ecs_backends
from moto.moto_api import state_manager

from muster.clock import FakeClock
from muster.errors import TryLater
from muster.launchers.ecs import EcsLauncher
from muster.launchers.fake import Call, FakeLauncher, fails, late, lost, never, no_capacity, throttled
from muster.launchers.forkserver import ForkServer
from muster.launchers.port import Launch, Launcher, TaskDied, TaskKind, TaskStatus, TaskView
from muster.launchers.process import ProcessLauncher
from muster.launchers.procfs import leaders

REGION = "eu-west-1"
ROOT = Path(__file__).parents[2]

#: Says when it is ready, exits 0 on SIGTERM and 7 on SIGUSR1.
WORKER = ("sh", "-c", "trap 'exit 0' TERM; trap 'exit 7' USR1; echo ready; sleep 300 & wait")

USER = Launch(TaskKind.USER, "u1", epoch=7, env={"MUSTER_VERSION": "v1"})
POOL = Launch(TaskKind.POOL, "default", launch_id="slot-1")
JOB = Launch(TaskKind.JOB, "reports", launch_id="slot-1")


class World(Protocol):
    """A launcher with the power to end its tasks and to lose its control process."""

    launcher: Launcher

    def restart(self) -> None:
        """The control process is replaced; the tasks go on."""

    def finish(self, task_id: str) -> None:
        """The task ends by itself with exit code 7."""

    def close(self) -> None: ...


@dataclass(frozen=True)
class Aws:
    ecs: Any
    instance_id: str


class FakeWorld:
    def __init__(self, folder: Path, aws: Aws) -> None:
        self.launcher = FakeLauncher(FakeClock())

    def restart(self) -> None:
        """A fake is its own world: what it started stays in it."""

    def finish(self, task_id: str) -> None:
        self.launcher.finish(task_id, 7)

    def close(self) -> None:
        """Nothing runs."""


class FaithfulEcs:
    """moto's ECS client with three promises moto does not keep and ECS does.

    A repeated clientToken returns the first task, an unknown task is MISSING in `failures`, and
    StopTask of an unknown task is an InvalidParameterException.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._by_token: dict[str, str] = {}
        self._lock = threading.Lock()

    def run_task(self, **request: Any) -> Any:
        with self._lock:
            token = request.pop("clientToken")
            if arn := self._by_token.get(token):
                return self._client.describe_tasks(cluster=request["cluster"], tasks=[arn])
            answer = self._client.run_task(**request)
            self._by_token[token] = answer["tasks"][0]["taskArn"]
            return answer

    def describe_tasks(self, **request: Any) -> Any:
        answer = self._client.describe_tasks(**request)
        found = {task["taskArn"] for task in answer["tasks"]}
        answer["failures"] = [
            {"arn": arn, "reason": "MISSING"} for arn in request["tasks"] if arn not in found
        ]
        return answer

    def stop_task(self, **request: Any) -> Any:
        if self.describe_tasks(cluster=request["cluster"], tasks=[request["task"]])["failures"]:
            error = {"Code": "InvalidParameterException", "Message": "The referenced task was not found."}
            raise ClientError({"Error": error}, "StopTask")
        return self._client.stop_task(**request)

    def list_tasks(self, **request: Any) -> Any:
        return self._client.list_tasks(desiredStatus="RUNNING", **request)


@pytest.fixture(scope="module")
def aws() -> Iterator[Aws]:
    """moto, once: its EC2 takes half a second to come up."""
    with mock_aws():
        # Without this every describe pushes a task one step towards STOPPED.
        state_manager.set_transition("ecs::task", {"progression": "manual", "times": 10**9})
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
        ecs = boto3.client("ecs", region_name=REGION, **keys)
        ec2 = boto3.client("ec2", region_name=REGION, **keys)
        instance = ec2.run_instances(ImageId="ami-12c6146b", MinCount=1, MaxCount=1)["Instances"][0]
        ecs.register_task_definition(
            family="worker", containerDefinitions=[{"name": "worker", "image": "worker:1", "memory": 64}]
        )
        yield Aws(ecs, instance["InstanceId"])
        state_manager.unset_transition("ecs::task")


class EcsWorld:
    def __init__(self, folder: Path, aws: Aws) -> None:
        self._cluster = f"muster-{uuid.uuid4()}"
        aws.ecs.create_cluster(clusterName=self._cluster)
        # moto places a task only on a registered instance.
        document = json.dumps({"instanceId": aws.instance_id})
        aws.ecs.register_container_instance(cluster=self._cluster, instanceIdentityDocument=document)
        self._client = FaithfulEcs(aws.ecs)
        self.restart()

    def restart(self) -> None:
        self.launcher = EcsLauncher(self._client, self._cluster, "worker", "workers", "worker")

    def finish(self, task_id: str) -> None:
        task = ecs_backends[DEFAULT_ACCOUNT_ID][REGION].tasks[self._cluster][task_id]
        task.last_status = task.desired_status = "STOPPED"
        task.stopped_reason = "Essential container in task exited"
        task.containers[0].exitCode = 7

    def close(self) -> None:
        """moto goes with the module."""


class ProcessWorld:
    def __init__(self, folder: Path, aws: Aws) -> None:
        self._folder = folder
        self._open()

    def _open(self) -> None:
        self.launcher = ProcessLauncher(
            self._folder,
            WORKER,
            {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
            grace=timedelta(seconds=20),
            fork=self._fork_server(),
        )

    def _fork_server(self) -> ForkServer | None:
        return None

    def restart(self) -> None:
        self.launcher.close()
        self._open()

    def finish(self, task_id: str) -> None:
        log = self._folder / "logs" / f"{task_id}.log"
        eventually(lambda: "ready" in log.read_text())
        os.kill(self.launcher.pid(task_id), signal.SIGUSR1)

    def close(self) -> None:
        self.launcher.close()
        for pid, _ in leaders({"MUSTER_TASK_FOLDER": str(self._folder)}):
            os.killpg(pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # a fork server was its parent
                os.waitpid(pid, 0)


class ForkWorld(ProcessWorld):
    def _fork_server(self) -> ForkServer:
        return ForkServer("tests.polite_task:main")


def eventually(true: Callable[[], object], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.005)


@pytest.fixture(params=[FakeWorld, EcsWorld, ProcessWorld, ForkWorld], ids=["fake", "ecs", "process", "fork"])
def world(request: pytest.FixtureRequest, tmp_path: Path, aws: Aws) -> Iterator[World]:
    world = request.param(tmp_path, aws)
    yield world
    world.close()


def seen(world: World, task_id: str) -> TaskView:
    return world.launcher.describe([task_id])[task_id]


def ended(world: World, task_id: str) -> TaskView:
    eventually(lambda: seen(world, task_id).status is TaskStatus.STOPPED)
    return seen(world, task_id)


@pytest.mark.parametrize("launch", [USER, POOL, JOB], ids=lambda launch: launch.kind)
def test_a_launch_becomes_a_running_task_that_names_its_owner(world: World, launch: Launch) -> None:
    view = seen(world, world.launcher.run(launch))

    assert view.status is TaskStatus.RUNNING
    assert (view.kind, view.owner, view.epoch) == (launch.kind, launch.owner, launch.epoch)
    assert view.exit_code is None
    assert view.stopped_reason is None


def test_the_same_token_returns_the_same_task(world: World) -> None:
    assert world.launcher.run(USER) == world.launcher.run(USER)
    assert len(list(world.launcher.tasks())) == 1


def test_the_same_token_returns_the_same_task_after_the_control_process_was_replaced(world: World) -> None:
    before = world.launcher.run(USER)
    world.restart()

    assert seen(world, before).status is TaskStatus.RUNNING
    assert world.launcher.run(USER) == before
    assert list(world.launcher.tasks()) == [before]


def test_twenty_callers_with_one_token_get_one_task(world: World) -> None:
    with ThreadPoolExecutor(20) as callers:
        answers = set(callers.map(lambda _: world.launcher.run(USER), range(20)))

    assert len(answers) == 1
    assert list(world.launcher.tasks()) == list(answers)


def test_another_epoch_attempt_owner_kind_or_reservation_is_another_task(world: World) -> None:
    launches = [
        USER,
        Launch(TaskKind.USER, "u1", epoch=8),
        Launch(TaskKind.USER, "u1", epoch=7, attempt=1),
        Launch(TaskKind.USER, "u2", epoch=7),
        POOL,
        Launch(TaskKind.POOL, "default", launch_id="slot-2"),
        Launch(TaskKind.JOB, "default", launch_id="slot-1"),
    ]
    ids = {world.launcher.run(launch) for launch in launches}

    assert len(ids) == len(launches)
    assert set(world.launcher.tasks()) == ids


def test_a_task_that_ended_keeps_its_exit_code_and_leaves_the_list(world: World) -> None:
    task_id = world.launcher.run(USER)
    world.finish(task_id)
    view = ended(world, task_id)

    assert view.exit_code == 7
    assert view.stopped_reason
    assert list(world.launcher.tasks()) == []


def test_a_token_whose_task_has_ended_says_so_and_the_next_attempt_is_a_new_task(world: World) -> None:
    first = world.launcher.run(USER)
    world.finish(first)
    ended(world, first)

    with pytest.raises(TaskDied, match=r"attempt \+ 1") as died:
        world.launcher.run(USER)
    assert died.value.dead_task == first
    second = world.launcher.run(Launch(TaskKind.USER, "u1", epoch=7, attempt=1))
    assert second != first
    assert list(world.launcher.tasks()) == [second]


def test_a_token_stays_used_after_the_control_process_was_replaced(world: World) -> None:
    task_id = world.launcher.run(USER)
    world.finish(task_id)
    ended(world, task_id)
    world.restart()

    with pytest.raises(TaskDied):
        world.launcher.run(USER)


def test_stop_ends_a_task_and_keeps_the_reason(world: World) -> None:
    task_id = world.launcher.run(USER)
    world.launcher.stop(task_id, "the owner asked for none")

    assert ended(world, task_id).stopped_reason == "the owner asked for none"
    assert list(world.launcher.tasks()) == []


def test_a_token_whose_task_was_asked_to_stop_says_so_at_once(world: World) -> None:
    task_id = world.launcher.run(USER)
    world.launcher.stop(task_id, "the owner asked for none")

    with pytest.raises(TaskDied, match="the owner asked for none") as died:
        world.launcher.run(USER)
    assert died.value.dead_task == task_id


def test_stop_leaves_the_other_tasks_alone(world: World) -> None:
    task_id, other = world.launcher.run(USER), world.launcher.run(POOL)
    world.launcher.stop(task_id, "the owner asked for none")
    ended(world, task_id)

    assert seen(world, other).status is TaskStatus.RUNNING
    assert list(world.launcher.tasks()) == [other]


def test_stopping_a_stopped_or_unknown_task_is_no_error(world: World) -> None:
    task_id = world.launcher.run(USER)
    world.launcher.stop(task_id, "first")
    world.launcher.stop(task_id, "while it ends")
    ended(world, task_id)
    world.launcher.stop(task_id, "after it ended")
    world.launcher.stop("nobody-knows-this-one", "unknown")

    assert seen(world, task_id).status is TaskStatus.STOPPED


def test_every_id_asked_for_gets_an_answer(world: World) -> None:
    task_id = world.launcher.run(USER)
    views = world.launcher.describe([task_id, "nobody-knows-this-one", task_id])

    assert {key: view.status for key, view in views.items()} == {
        task_id: TaskStatus.RUNNING,
        "nobody-knows-this-one": TaskStatus.MISSING,
    }
    assert all(key == view.task_id for key, view in views.items())
    assert world.launcher.describe([]) == {}


def test_tasks_of_every_kind_are_listed(world: World) -> None:
    ids = {world.launcher.run(launch) for launch in (USER, POOL, JOB)}

    assert set(world.launcher.tasks()) == ids


# The fake alone: what real launchers do only on bad days, on a clock.


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def fake(clock: FakeClock) -> FakeLauncher:
    return FakeLauncher(clock)


def status(fake: FakeLauncher, task_id: str) -> TaskStatus:
    return fake.describe([task_id])[task_id].status


def test_a_late_task_is_pending_until_its_time(fake: FakeLauncher, clock: FakeClock) -> None:
    fake.plan(late(3))
    task_id = fake.run(USER)
    created = clock.now()

    clock.advance(2.5)
    view = fake.describe([task_id])[task_id]
    assert (view.status, view.started_at) == (TaskStatus.PENDING, created)
    clock.advance(0.5)
    view = fake.describe([task_id])[task_id]
    assert (view.status, view.started_at) == (TaskStatus.RUNNING, created + 3)


def test_a_task_that_never_starts_stays_pending_until_it_is_stopped(
    fake: FakeLauncher, clock: FakeClock
) -> None:
    fake.plan(never())
    task_id = fake.run(USER)
    clock.advance(86_400)
    assert status(fake, task_id) is TaskStatus.PENDING

    fake.stop(task_id, "stuck")
    assert status(fake, task_id) is TaskStatus.STOPPED


def test_a_failed_task_stops_with_its_reason_and_no_exit_code(fake: FakeLauncher, clock: FakeClock) -> None:
    fake.plan(fails("CannotPullContainerError", after=2))
    task_id = fake.run(USER)
    assert status(fake, task_id) is TaskStatus.PENDING

    clock.advance(2)
    view = fake.describe([task_id])[task_id]
    assert (view.status, view.stopped_reason, view.exit_code) == (
        TaskStatus.STOPPED,
        "CannotPullContainerError",
        None,
    )
    with pytest.raises(TaskDied):
        fake.run(USER)


def test_a_lost_answer_leaves_a_task_that_the_retry_finds(fake: FakeLauncher) -> None:
    fake.plan(lost())
    with pytest.raises(TryLater):
        fake.run(USER)
    (started,) = fake.living()

    assert fake.run(USER) == started
    assert len(fake.living()) == 1


def test_a_call_that_is_turned_away_starts_nothing_also_on_a_retry(fake: FakeLauncher) -> None:
    fake.plan(throttled(), no_capacity())
    for reason in ("rate exceeded", "no capacity"):
        with pytest.raises(TryLater, match=reason):
            fake.run(USER)
    assert fake.living() == {}

    fake.plan(lost(), throttled())
    for _ in range(2):
        with pytest.raises(TryLater):
            fake.run(USER)
    assert list(fake.living()) == [fake.run(USER)]


def test_a_stop_takes_its_time(fake: FakeLauncher, clock: FakeClock) -> None:
    fake.stop_delay = 30
    task_id = fake.run(USER)
    fake.stop(task_id, "first")
    clock.advance(20)
    fake.stop(task_id, "a second stop does not postpone the first")
    assert status(fake, task_id) is TaskStatus.RUNNING
    with pytest.raises(TaskDied):
        fake.run(USER)

    clock.advance(10)
    view = fake.describe([task_id])[task_id]
    assert (view.status, view.stopped_reason) == (TaskStatus.STOPPED, "first")


def test_a_stale_list_misses_the_new_and_shows_the_dead(fake: FakeLauncher, clock: FakeClock) -> None:
    old = fake.run(USER)
    clock.advance(10)
    fake.list_lag = 5
    fake.run(POOL)
    fake.finish(old, 0)
    assert list(fake.tasks()) == [old]

    clock.advance(5)
    assert list(fake.tasks()) == list(fake.living()) != [old]


def test_a_throttled_describe_knows_nothing(fake: FakeLauncher) -> None:
    task_id = fake.run(USER)
    fake.describe_throttled = True
    assert status(fake, task_id) is TaskStatus.UNKNOWN

    fake.describe_throttled = False
    assert status(fake, task_id) is TaskStatus.RUNNING


def test_a_stopped_task_is_missing_after_an_hour(fake: FakeLauncher, clock: FakeClock) -> None:
    task_id = fake.run(USER)
    fake.finish(task_id, 1)
    clock.advance(3599)
    assert status(fake, task_id) is TaskStatus.STOPPED

    clock.advance(1)
    assert status(fake, task_id) is TaskStatus.MISSING


def test_every_call_is_counted(fake: FakeLauncher) -> None:
    task_id = fake.run(USER)
    fake.describe([task_id])
    fake.tasks()
    fake.stop(task_id, "why")

    assert fake.calls == [
        Call("run", launch=USER),
        Call("describe", task_ids=(task_id,)),
        Call("tasks"),
        Call("stop", task_ids=(task_id,)),
    ]
