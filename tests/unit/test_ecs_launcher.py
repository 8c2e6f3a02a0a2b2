"""How the ECS launcher asks, and what it makes of every bad answer. Stubber checks each request's shape."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError
from botocore.stub import ANY, Stubber

from muster.blueprint import CALL_DEADLINE, ECS_MUTATE, ECS_READ, CallBucket
from muster.errors import Refused, TryLater
from muster.launchers.ecs import OVERRIDES_MAX_CHARACTERS, EcsLauncher, ecs_client
from muster.launchers.port import Launch, TaskDied, TaskKind, TaskStatus, TaskView

USER = Launch(TaskKind.USER, "u1@example.org:x", epoch=1_700_000_000_123, attempt=2)
ARN = "arn:aws:ecs:eu-west-1:123456789012:task/muster/0123456789abcdef0123456789abcdef"


ANY_RUN_TASK = dict.fromkeys(
    (
        "cluster",
        "taskDefinition",
        "count",
        "clientToken",
        "startedBy",
        "capacityProviderStrategy",
        "placementStrategy",
        "enableExecuteCommand",
        "tags",
        "overrides",
    ),
    ANY,
)


@pytest.fixture
def client() -> Any:
    return boto3.client("ecs", region_name="eu-west-1", aws_access_key_id="x", aws_secret_access_key="x")


@pytest.fixture
def stub(client: Any) -> Iterator[Stubber]:
    with Stubber(client) as stub:
        yield stub
        stub.assert_no_pending_responses()


@pytest.fixture
def ecs(client: Any) -> EcsLauncher:
    return launcher(client)


def launcher(client: Any, **options: Any) -> EcsLauncher:
    return EcsLauncher(client, "muster", "worker:3", "workers", "worker", **options)


class Unreachable:
    """A client whose every call ends in one botocore error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def call(**request: Any) -> Any:
            raise self._error

        return call


class Fleet:
    """RunTask with clientTokens, which can act and then lose its answer."""

    def __init__(self) -> None:
        self.started: dict[str, str] = {}
        self.lose_next = False

    def run_task(self, **request: Any) -> Any:
        arn = self.started.setdefault(request["clientToken"], f"{ARN}{len(self.started)}")
        if self.lose_next:
            self.lose_next = False
            raise ReadTimeoutError(endpoint_url="https://ecs")
        return {"tasks": [{"taskArn": arn, "lastStatus": "PROVISIONING"}], "failures": []}


def test_run_task_asks_for_one_task_with_token_owner_and_placement(ecs: EcsLauncher, stub: Stubber) -> None:
    expected = {
        "cluster": "muster",
        "taskDefinition": "worker:3",
        "count": 1,
        "clientToken": USER.token,
        "startedBy": "muster/user",
        "capacityProviderStrategy": [{"capacityProvider": "workers", "weight": 1}],
        "placementStrategy": [{"type": "binpack", "field": "memory"}],
        "enableExecuteCommand": False,
        "tags": [
            {"key": "muster:kind", "value": "user"},
            {"key": "muster:owner", "value": "u1@example.org:x"},
            {"key": "muster:epoch", "value": "1700000000123"},
        ],
        "overrides": {
            "containerOverrides": [
                {
                    "name": "worker",
                    "environment": [
                        {"name": "MUSTER_EPOCH", "value": "1700000000123"},
                        {"name": "MUSTER_KIND", "value": "user"},
                        {"name": "MUSTER_USER", "value": "u1@example.org:x"},
                    ],
                }
            ]
        },
    }
    stub.add_response("run_task", {"tasks": [{"taskArn": ARN, "lastStatus": "PROVISIONING"}]}, expected)

    assert ecs.run(USER) == ARN
    assert len(USER.token) == 64


def test_a_pool_launch_names_its_pool_and_reservation_and_a_job_its_pinned_image(client: Any) -> None:
    requests: list[dict[str, Any]] = []

    class Recorder:
        def run_task(self, **request: Any) -> Any:
            requests.append(request)
            return {"tasks": [{"taskArn": ARN, "lastStatus": "PENDING"}]}

    ecs = launcher(Recorder())
    ecs.run(Launch(TaskKind.POOL, "default", launch_id="slot-9", env={"MUSTER_POOL": "not-this-one"}))
    ecs.run(Launch(TaskKind.JOB, "reports", launch_id="slot-9", image="worker:1", env={"EXTRA": "1"}))

    pool, job = (
        {item["name"]: item["value"] for item in r["overrides"]["containerOverrides"][0]["environment"]}
        for r in requests
    )
    assert pool == {"MUSTER_KIND": "pool", "MUSTER_POOL": "default", "MUSTER_LAUNCH_ID": "slot-9"}
    assert job == {
        "MUSTER_KIND": "job",
        "MUSTER_POOL": "reports",
        "MUSTER_LAUNCH_ID": "slot-9",
        "EXTRA": "1",
    }
    assert [r["taskDefinition"] for r in requests] == ["worker:3", "worker:1"]
    assert [r["startedBy"] for r in requests] == ["muster/pool", "muster/job"]


def test_tokens_do_not_collide_where_the_parts_run_together() -> None:
    launches = [
        Launch(TaskKind.USER, "u1", epoch=11),
        Launch(TaskKind.USER, "u11", epoch=1),
        Launch(TaskKind.USER, "u1", epoch=1, attempt=1),
        Launch(TaskKind.POOL, 'a", "b', launch_id="c"),
        Launch(TaskKind.POOL, "a", launch_id='b", "c'),
    ]
    assert len({launch.token for launch in launches}) == len(launches)
    assert Launch(TaskKind.USER, "u1", env={"A": "1"}, image="x:1").token == Launch(TaskKind.USER, "u1").token


def test_every_legal_user_id_fits_into_a_tag(ecs: EcsLauncher, stub: Stubber) -> None:
    owner = "AZaz09._@:-" + "x" * 117
    stub.add_response("run_task", {"tasks": [{"taskArn": ARN, "lastStatus": "PENDING"}]}, ANY_RUN_TASK)

    assert len(owner) == 128
    assert ecs.run(Launch(TaskKind.USER, owner)) == ARN


def test_an_owner_that_is_no_tag_value_is_refused_before_the_call(ecs: EcsLauncher, stub: Stubber) -> None:
    with pytest.raises(Refused, match="tag value"):
        ecs.run(Launch(TaskKind.POOL, "a*b"))


def test_an_environment_over_the_limit_is_refused_before_the_call(ecs: EcsLauncher, stub: Stubber) -> None:
    with pytest.raises(Refused, match="8192"):
        ecs.run(Launch(TaskKind.USER, "u1", env={"BIG": "x" * OVERRIDES_MAX_CHARACTERS}))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ThrottlingException", "Rate exceeded"),
        ("InvalidParameterException", "Rate exceeded"),
        ("InvalidParameterException", "Request was throttled"),
        ("InvalidParameterException", "No Container Instances were found in your capacity provider."),
        ("ClientException", "You've reached the limit on the number of tasks you can run concurrently"),
        ("LimitExceededException", "Tasks provisioning capacity limit exceeded."),
        ("ServerException", "Service Unavailable. Please try again later."),
        ("ExpiredTokenException", "The security token included in the request is expired"),
    ],
)
def test_what_may_pass_is_tried_later(ecs: EcsLauncher, stub: Stubber, code: str, message: str) -> None:
    stub.add_client_error("run_task", code, message)

    with pytest.raises(TryLater) as error:
        ecs.run(USER)
    assert not isinstance(error.value, TaskDied)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("ClusterNotFoundException", "Cluster not found."),
        ("ClientException", "TaskDefinition is inactive"),
        ("InvalidParameterException", "Override for container named x is not a container in the definition"),
        ("AccessDeniedException", "not authorized to perform: ecs:RunTask"),
    ],
)
def test_what_can_never_work_is_refused(ecs: EcsLauncher, stub: Stubber, code: str, message: str) -> None:
    stub.add_client_error("run_task", code, message)

    with pytest.raises(Refused, match="check the cluster"):
        ecs.run(USER)


@pytest.mark.parametrize(
    "error",
    [
        ReadTimeoutError(endpoint_url="https://ecs"),
        ConnectTimeoutError(endpoint_url="https://ecs"),
        EndpointConnectionError(endpoint_url="https://ecs"),
    ],
)
def test_an_ecs_that_does_not_answer_is_tried_later_and_its_tasks_are_unknown(error: Exception) -> None:
    ecs = launcher(Unreachable(error))

    with pytest.raises(TryLater):
        ecs.run(USER)
    with pytest.raises(TryLater):
        ecs.stop(ARN, "why")
    with pytest.raises(TryLater):
        list(ecs.tasks())
    assert ecs.describe([ARN]) == {ARN: TaskView(ARN, TaskStatus.UNKNOWN)}


def test_an_answer_lost_after_success_starts_no_second_task() -> None:
    fleet = Fleet()
    fleet.lose_next = True
    ecs = launcher(fleet)

    with pytest.raises(TryLater):
        ecs.run(USER)
    assert ecs.run(USER) == f"{ARN}0"
    assert len(fleet.started) == 1


@pytest.mark.parametrize(
    "answer",
    [
        {"tasks": [], "failures": [{"arn": "arn:instance", "reason": "RESOURCE:MEMORY"}]},
        {"tasks": [], "failures": []},
    ],
)
def test_failures_in_the_answer_are_tried_later_with_the_same_token(
    ecs: EcsLauncher, stub: Stubber, answer: dict[str, Any]
) -> None:
    same = ANY_RUN_TASK | {"clientToken": USER.token}
    stub.add_response("run_task", answer, same)
    stub.add_response("run_task", {"tasks": [{"taskArn": ARN, "lastStatus": "RUNNING"}]}, same)

    with pytest.raises(TryLater, match=r"RESOURCE:MEMORY|no reason given"):
        ecs.run(USER)
    assert ecs.run(USER) == ARN


@pytest.mark.parametrize(
    "task",
    [
        {"lastStatus": "STOPPED", "desiredStatus": "STOPPED", "stoppedReason": "CannotPullContainerError"},
        {"lastStatus": "RUNNING", "desiredStatus": "STOPPED", "stoppedReason": "CannotPullContainerError"},
        {"lastStatus": "DEPROVISIONING", "stoppedReason": "CannotPullContainerError"},
    ],
)
def test_a_repeated_token_whose_task_is_dead_or_dying_asks_for_the_next_attempt(
    ecs: EcsLauncher, stub: Stubber, task: dict[str, Any]
) -> None:
    stub.add_response("run_task", {"tasks": [{"taskArn": ARN, **task}]}, ANY_RUN_TASK)

    with pytest.raises(TaskDied, match="CannotPullContainerError") as died:
        ecs.run(USER)
    assert died.value.dead_task == ARN


def conflict(stub: Stubber) -> None:
    stub.add_client_error(
        "run_task", "ConflictException", "parameters differ", modeled_fields={"resourceIds": [ARN]}
    )


@pytest.mark.parametrize(
    "described",
    [
        {"tasks": [{"taskArn": ARN, "lastStatus": "RUNNING"}]},
        {"failures": [{"arn": ARN, "reason": "MISSING"}]},
    ],
)
def test_a_conflict_adopts_the_task_of_the_token_even_before_ecs_can_show_it(
    ecs: EcsLauncher, stub: Stubber, described: dict[str, Any]
) -> None:
    conflict(stub)
    stub.add_response("describe_tasks", described)

    assert ecs.run(USER) == ARN


def test_a_conflict_with_a_dead_task_asks_for_the_next_attempt(ecs: EcsLauncher, stub: Stubber) -> None:
    conflict(stub)
    stub.add_response("describe_tasks", {"tasks": [{"taskArn": ARN, "lastStatus": "STOPPED"}]})

    with pytest.raises(TaskDied):
        ecs.run(USER)


def test_describe_reads_times_reason_exit_code_and_owner(ecs: EcsLauncher, stub: Stubber) -> None:
    created, started = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    tags = [
        {"key": "muster:kind", "value": "user"},
        {"key": "muster:owner", "value": "u1"},
        {"key": "muster:epoch", "value": "7"},
    ]
    killed = {
        "taskArn": ARN + "a",
        "lastStatus": "STOPPED",
        "createdAt": created,
        "startedAt": started,
        "stoppedReason": "OutOfMemoryError",
        "containers": [{"exitCode": 137}],
        "tags": tags,
    }
    never_started = {"taskArn": ARN + "b", "lastStatus": "STOPPED", "createdAt": created, "containers": []}
    stub.add_response("describe_tasks", {"tasks": [killed, never_started]})

    assert ecs.describe([ARN + "a", ARN + "b"]) == {
        ARN + "a": TaskView(
            ARN + "a",
            TaskStatus.STOPPED,
            started.timestamp(),
            "OutOfMemoryError",
            137,
            "u1",
            TaskKind.USER,
            7,
        ),
        ARN + "b": TaskView(ARN + "b", TaskStatus.STOPPED, created.timestamp()),
    }


@pytest.mark.parametrize(
    ("last_status", "status"),
    [
        ("PROVISIONING", TaskStatus.PENDING),
        ("PENDING", TaskStatus.PENDING),
        ("ACTIVATING", TaskStatus.PENDING),
        ("RUNNING", TaskStatus.RUNNING),
        ("DEACTIVATING", TaskStatus.RUNNING),
        ("STOPPING", TaskStatus.RUNNING),
        ("DEPROVISIONING", TaskStatus.STOPPED),
        ("STOPPED", TaskStatus.STOPPED),
        ("SOMETHING_NEW", TaskStatus.UNKNOWN),
    ],
)
def test_a_task_counts_as_running_until_its_process_has_ended(
    ecs: EcsLauncher, stub: Stubber, last_status: str, status: TaskStatus
) -> None:
    stub.add_response("describe_tasks", {"tasks": [{"taskArn": ARN, "lastStatus": last_status}]})

    assert ecs.describe([ARN])[ARN].status is status


def test_a_throttled_hundred_is_unknown_and_the_others_are_answered(ecs: EcsLauncher, stub: Stubber) -> None:
    ids = [f"{ARN}{n:03}" for n in range(250)]

    def hundred(part: list[str]) -> dict[str, Any]:
        return {"cluster": "muster", "tasks": part, "include": ["TAGS"]}

    stub.add_response(
        "describe_tasks",
        {"tasks": [{"taskArn": i, "lastStatus": "RUNNING"} for i in ids[:100]]},
        hundred(ids[:100]),
    )
    stub.add_client_error(
        "describe_tasks", "ThrottlingException", "Rate exceeded", expected_params=hundred(ids[100:200])
    )
    missing = [{"arn": i, "reason": "MISSING"} for i in ids[200:249]]
    stub.add_response("describe_tasks", {"failures": missing}, hundred(ids[200:]))
    views = ecs.describe(ids)

    assert {views[i].status for i in ids[:100]} == {TaskStatus.RUNNING}
    assert {views[i].status for i in ids[100:200]} == {TaskStatus.UNKNOWN}
    assert {views[i].status for i in ids[200:249]} == {TaskStatus.MISSING}
    assert views[ids[249]].status is TaskStatus.UNKNOWN, "silence is not an answer"


def test_a_role_that_may_not_describe_is_told_not_hidden(ecs: EcsLauncher, stub: Stubber) -> None:
    stub.add_client_error("describe_tasks", "AccessDeniedException", "not authorized")

    with pytest.raises(Refused, match="role"):
        ecs.describe([ARN])


def test_tasks_are_listed_page_by_page_with_started_by_as_only_filter(
    ecs: EcsLauncher, stub: Stubber
) -> None:
    def page(kind: str, **more: str) -> dict[str, Any]:
        return {"cluster": "muster", "startedBy": f"muster/{kind}", "maxResults": 100, **more}

    stub.add_response("list_tasks", {"taskArns": ["a", "b"], "nextToken": "n"}, page("user"))
    stub.add_response("list_tasks", {"taskArns": ["c"]}, page("user", nextToken="n"))
    stub.add_response("list_tasks", {"taskArns": ["d"]}, page("pool"))
    stub.add_response("list_tasks", {"taskArns": []}, page("job"))

    assert list(ecs.tasks()) == ["a", "b", "c", "d"]


def test_a_list_that_breaks_off_is_no_list(ecs: EcsLauncher, stub: Stubber) -> None:
    stub.add_response("list_tasks", {"taskArns": ["a"], "nextToken": "n"})
    stub.add_client_error("list_tasks", "ThrottlingException", "Rate exceeded")

    with pytest.raises(TryLater):
        list(ecs.tasks())


def test_stop_sends_the_reason_cut_to_what_ecs_takes(ecs: EcsLauncher, stub: Stubber) -> None:
    stub.add_response("stop_task", {}, {"cluster": "muster", "task": ARN, "reason": "x" * 255})

    ecs.stop(ARN, "x" * 300)


def test_stopping_a_task_ecs_forgot_is_no_error(ecs: EcsLauncher, stub: Stubber) -> None:
    stub.add_client_error("stop_task", "InvalidParameterException", "The referenced task was not found.")

    ecs.stop(ARN, "why")


def test_a_throttled_stop_is_tried_later(ecs: EcsLauncher, stub: Stubber) -> None:
    stub.add_client_error("stop_task", "ThrottlingException", "Rate exceeded")

    with pytest.raises(TryLater):
        ecs.stop(ARN, "why")


def test_a_stop_in_a_cluster_that_is_not_there_is_refused(ecs: EcsLauncher, stub: Stubber) -> None:
    stub.add_client_error("stop_task", "ClusterNotFoundException", "Cluster not found.")

    with pytest.raises(Refused):
        ecs.stop(ARN, "why")


def test_every_call_is_paid_from_its_bucket(client: Any, stub: Stubber) -> None:
    paid: list[tuple[CallBucket, int]] = []
    ecs = launcher(client, budget=lambda bucket, calls: paid.append((bucket, calls)))
    stub.add_response("run_task", {"tasks": [{"taskArn": ARN, "lastStatus": "PENDING"}]})
    stub.add_response("stop_task", {})
    for _ in range(2):
        stub.add_response("describe_tasks", {})
    for _ in TaskKind:
        stub.add_response("list_tasks", {"taskArns": []})

    ecs.run(USER)
    ecs.stop(ARN, "why")
    ecs.describe([f"{ARN}{n}" for n in range(101)])
    list(ecs.tasks())

    assert paid == [(ECS_MUTATE, 1)] * 2 + [(ECS_READ, 1)] * 5


def test_an_empty_budget_keeps_the_call_from_being_made(client: Any, stub: Stubber) -> None:
    def empty(bucket: CallBucket, calls: int) -> None:
        raise TryLater(f"the share of {bucket.name} is used up")

    ecs = launcher(client, budget=empty)

    with pytest.raises(TryLater, match="ecs-mutate"):
        ecs.run(USER)
    assert ecs.describe([ARN])[ARN].status is TaskStatus.UNKNOWN


def test_the_worst_case_of_one_call_stays_inside_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    client = ecs_client("eu-west-1", "http://127.0.0.1:4566")
    config = client.meta.config
    attempts = config.retries["total_max_attempts"]
    pauses = sum(2**n for n in range(attempts - 1))  # standard mode waits up to 2**n s before retry n + 1

    assert config.retries["mode"] == "standard"
    assert attempts * (config.connect_timeout + config.read_timeout) + pauses < CALL_DEADLINE.total_seconds()
    assert client.meta.endpoint_url == "http://127.0.0.1:4566"
