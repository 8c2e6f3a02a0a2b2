"""Tasks on ECS: RunTask with a clientToken, so that a repeated or lost call never starts a second task."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from muster.blueprint import (
    DESCRIBE_TASKS_MAX,
    ECS_MUTATE,
    ECS_READ,
    LIST_PATIENCE,
    LIST_TASKS_PAGE,
    CallBucket,
)
from muster.errors import Refused, TryLater
from muster.launchers.port import Launch, NewAttempt, TaskDied, TaskKind, TaskStatus, TaskView, identity

Budget = Callable[[CallBucket, int], None]

#: Limits of the RunTask and StopTask calls.
OVERRIDES_MAX_CHARACTERS = 8192
STOP_REASON_MAX_CHARACTERS = 255

#: What ECS takes as a tag value. Every legal user id fits; a pool name is checked before the call.
_TAG_VALUE = re.compile(r"[\w .:/=+\-@]{0,256}")

_STATUS = {
    "PROVISIONING": TaskStatus.PENDING,
    "PENDING": TaskStatus.PENDING,
    "ACTIVATING": TaskStatus.PENDING,
    "RUNNING": TaskStatus.RUNNING,
    # SIGTERM was sent, but the worker may act until its process has ended.
    "DEACTIVATING": TaskStatus.RUNNING,
    "STOPPING": TaskStatus.RUNNING,
    "DEPROVISIONING": TaskStatus.STOPPED,
    "STOPPED": TaskStatus.STOPPED,
    "DELETED": TaskStatus.STOPPED,
}

#: Answers that the same call will get again until a person changes something.
_FINAL = {
    "AccessDeniedException",
    "BlockedException",
    "ClientException",
    "ClusterNotFoundException",
    "InvalidParameterException",
    "PlatformTaskDefinitionIncompatibilityException",
    "PlatformUnknownException",
    "UnsupportedFeatureException",
}
#: ... unless the text says otherwise: ECS reports throttles and full clusters under those codes too.
_PASSING = re.compile(r"throttl|rate exceeded|too many|limit|capacity|no container instances|try again", re.I)
_NOT_FOUND = re.compile(r"\btask\b.*not found", re.I)


def ecs_client(region: str, endpoint_url: str | None = None) -> Any:
    """An ECS client whose worst case stays inside `CALL_DEADLINE` (15 s).

    Two attempts of 2 s to connect and 4 s to read, and a pause of at most 1 s between them: 13 s.
    """
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 2},
        connect_timeout=2,
        read_timeout=4,
        max_pool_connections=50,
    )
    return boto3.client("ecs", region_name=region, endpoint_url=endpoint_url, config=config)


class EcsLauncher:
    """The `Launcher` on one ECS cluster. A task id is the task's ARN.

    `budget` is asked before every AWS call with its bucket and the number of calls; it raises
    `TryLater` when this caller's share is used up. A listing waits for it, if it is given a `wait`.
    """

    def __init__(
        self,
        client: Any,
        cluster: str,
        task_definition: str,
        capacity_provider: str,
        container: str,
        budget: Budget | None = None,
        wait: Callable[[float], None] | None = None,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._task_definition = task_definition
        self._capacity_provider = capacity_provider
        self._container = container
        self._budget = budget
        self._wait = wait

    def run(self, launch: Launch) -> str:
        request = self._request(launch)
        try:
            answer = self._call(ECS_MUTATE, self._client.run_task, **request)
        except ClientError as error:
            if _code(error) != "ConflictException" or not error.response.get("resourceIds"):
                raise _translated(error, "RunTask") from error
            return self._adopt(error.response["resourceIds"][0])
        if not answer.get("tasks"):
            # Not reliable: a task may exist all the same. It has the right epoch, so it may still win the
            # mark; the token is used up, because ECS repeats its original answer for it.
            raise NewAttempt(f"ECS started no task for {launch.owner}: {_reasons(answer)}; ask again")
        task = answer["tasks"][0]
        if task.get("desiredStatus") == "STOPPED" or _status(task) is TaskStatus.STOPPED:
            raise TaskDied(task["taskArn"], task.get("stoppedReason"))
        return str(task["taskArn"])

    def stop(self, task_id: str, reason: str) -> None:
        reason = reason[:STOP_REASON_MAX_CHARACTERS]
        try:
            self._call(ECS_MUTATE, self._client.stop_task, cluster=self._cluster, task=task_id, reason=reason)
        except ClientError as error:
            if not _NOT_FOUND.search(_message(error)):
                raise _translated(error, "StopTask") from error

    def describe(self, task_ids: Sequence[str]) -> dict[str, TaskView]:
        views: dict[str, TaskView] = {}
        ids = list(dict.fromkeys(task_ids))
        for start in range(0, len(ids), DESCRIBE_TASKS_MAX):
            hundred = ids[start : start + DESCRIBE_TASKS_MAX]
            # An id that ECS does not mention at all stays UNKNOWN: silence is not an answer.
            views |= {task_id: TaskView(task_id, TaskStatus.UNKNOWN) for task_id in hundred}
            views |= self._describe_hundred(hundred)
        return views

    def tasks(self) -> Iterator[str]:
        patience = LIST_PATIENCE.total_seconds()
        for kind in TaskKind:
            # startedBy must be the only filter; the desired status is RUNNING when none is given.
            request = {
                "cluster": self._cluster,
                "startedBy": _started_by(kind),
                "maxResults": LIST_TASKS_PAGE,
            }
            while True:
                try:
                    page = self._call(ECS_READ, self._client.list_tasks, **request)
                except ClientError as error:
                    raise _translated(error, "ListTasks") from error
                except TryLater as busy:
                    pause = busy.after.total_seconds() if busy.after else patience + 1
                    if self._wait is None or pause > patience:
                        raise
                    patience -= pause
                    self._wait(pause)
                    continue
                yield from page["taskArns"]
                if not page.get("nextToken"):
                    break
                request["nextToken"] = page["nextToken"]

    def tasks_on(self, instance: str) -> list[str]:
        """Every task on one container instance, also what somebody else started: the caller knows its own."""
        request = {"cluster": self._cluster, "containerInstance": instance, "maxResults": LIST_TASKS_PAGE}
        found: list[str] = []
        while True:
            try:
                page = self._call(ECS_READ, self._client.list_tasks, **request)
            except ClientError as error:
                raise _translated(error, "ListTasks") from error
            found += page["taskArns"]
            if not page.get("nextToken"):
                return found
            request["nextToken"] = page["nextToken"]

    def _describe_hundred(self, task_ids: list[str]) -> dict[str, TaskView]:
        try:
            answer = self._call(
                ECS_READ,
                self._client.describe_tasks,
                cluster=self._cluster,
                tasks=task_ids,
                include=["TAGS"],
            )
        except ClientError as error:
            verdict = _translated(error, "DescribeTasks")
            if isinstance(verdict, Refused):
                raise verdict from error
            return {}
        except TryLater:
            return {}
        asked = {_bare(task_id): task_id for task_id in task_ids}
        views: dict[str, TaskView] = {}
        for failure in answer.get("failures", ()):
            if failure.get("reason") == "MISSING" and (task_id := asked.get(_bare(failure["arn"]))):
                views[task_id] = TaskView(task_id, TaskStatus.MISSING)
        for task in answer.get("tasks", ()):
            if task_id := asked.get(_bare(task["taskArn"])):
                views[task_id] = _view(task_id, task)
        return views

    def _adopt(self, task_id: str) -> str:
        """Take over the task an earlier call with this token started (with other parameters)."""
        view = self.describe([task_id])[task_id]
        if view.status is TaskStatus.STOPPED:
            raise TaskDied(task_id, view.stopped_reason)
        return task_id

    def _request(self, launch: Launch) -> dict[str, Any]:
        if not _TAG_VALUE.fullmatch(launch.owner):
            raise Refused(
                f"{launch.owner!r} cannot be a tag value: use letters, digits and _.:/=+-@, 256 at most"
            )
        environment = [{"name": name, "value": value} for name, value in sorted(identity(launch).items())]
        overrides = {"containerOverrides": [{"name": self._container, "environment": environment}]}
        if (size := len(json.dumps(overrides))) > OVERRIDES_MAX_CHARACTERS:
            raise Refused(
                f"the environment of {launch.owner} makes overrides of {size} characters; ECS takes "
                f"{OVERRIDES_MAX_CHARACTERS}: pass references instead of values"
            )
        return {
            "cluster": self._cluster,
            "taskDefinition": launch.image or self._task_definition,
            "count": 1,
            "clientToken": launch.token,
            "startedBy": _started_by(launch.kind),
            "capacityProviderStrategy": [{"capacityProvider": self._capacity_provider, "weight": 1}],
            # Full instances first, so that empty ones can be given back.
            "placementStrategy": [{"type": "binpack", "field": "memory"}],
            "overrides": overrides,
            "enableExecuteCommand": False,
            "tags": [
                {"key": "muster:kind", "value": launch.kind.value},
                {"key": "muster:owner", "value": launch.owner},
                {"key": "muster:epoch", "value": str(launch.epoch)},
            ],
        }

    def _call(self, bucket: CallBucket, method: Callable[..., Any], **request: Any) -> Any:
        """One AWS call, paid for. An answer that never came is `TryLater`; a bad answer is for the caller."""
        if self._budget is not None:
            self._budget(bucket, 1)
        try:
            return method(**request)
        except ParamValidationError as error:
            raise Refused(f"ECS cannot take this call: {error}") from error
        except BotoCoreError as error:
            raise TryLater(f"ECS did not answer ({error}); whether it acted is unknown, ask again") from error


def _started_by(kind: TaskKind) -> str:
    return f"muster/{kind.value}"


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _message(error: ClientError) -> str:
    """What ECS said; the text of the exception names the call too, which would match patterns."""
    return str(error.response.get("Error", {}).get("Message", ""))


def _translated(error: ClientError, call: str) -> TryLater | Refused:
    if _code(error) in _FINAL and not _PASSING.search(_message(error)):
        return Refused(f"ECS refuses {call}: {error}; check the cluster, the task definition and the role")
    return TryLater(f"ECS cannot do {call} now: {error}")


def _reasons(answer: dict[str, Any]) -> str:
    failures = answer.get("failures") or [{"reason": "no reason given"}]
    return ", ".join(str(failure.get("reason") or failure.get("detail")) for failure in failures)


def _bare(task: str) -> str:
    """The last part of an ARN: ECS may answer with another form of the id than it was asked for."""
    return task.rsplit("/", 1)[-1]


def _status(task: dict[str, Any]) -> TaskStatus:
    return _STATUS.get(task.get("lastStatus", ""), TaskStatus.UNKNOWN)


def _view(task_id: str, task: dict[str, Any]) -> TaskView:
    tags = {tag["key"]: tag["value"] for tag in task.get("tags", ())}
    began: datetime | None = task.get("startedAt") or task.get("createdAt")
    status = _status(task)
    # A task that failed to start has no containers, or containers without an exit code.
    codes = [c["exitCode"] for c in task.get("containers", ()) if c.get("exitCode") is not None]
    return TaskView(
        task_id=task_id,
        status=status,
        started_at=began.timestamp() if began else None,
        stopped_reason=task.get("stoppedReason") or None,
        exit_code=codes[0] if codes and status is TaskStatus.STOPPED else None,
        owner=tags.get("muster:owner"),
        kind=TaskKind(tags["muster:kind"]) if "muster:kind" in tags else None,
        epoch=int(tags["muster:epoch"]) if "muster:epoch" in tags else None,
    )
