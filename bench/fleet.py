"""A fleet for `bench/sweep.py`: any number of users in one store, and the ECS that would run them.

Both are arithmetic of a user's number, so that every process knows the same fleet without being told.
One user in a thousand is broken, in one of four ways; one task in ten thousand belongs to nobody.
"""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

from muster import blueprint, keys, steps
from muster.model import Assignment, Cause, Via
from muster.store import Store, command

BROKEN_EVERY = 1000
ORPHAN_EVERY = 10_000
_ARN = "arn:aws:ecs:eu-west-1:123456789012:task/muster-prod-workers/"
_STARTED = datetime(2026, 1, 1, tzinfo=UTC)
_CHUNK = 1000


class Broken(IntEnum):
    """How a user's worker is gone; its mark is gone in all of them."""

    FORGOTTEN = 0  #: its task ended long ago: ECS does not know it any more
    ENDED = 1  #: its task is stopped
    HUNG = 2  #: its task runs, and has not renewed for several sweeps
    NEVER = 3  #: its start was lost before there was a task


def user(number: int) -> str:
    return f"customer-{number:08d}"


def task(number: int) -> str:
    return f"{_ARN}{number:032x}"


def number_of(task_id: str) -> int:
    return int(task_id[len(_ARN) :], 16)


def broken(number: int) -> Broken | None:
    thousand, rest = divmod(number, BROKEN_EVERY)
    return Broken(thousand % len(Broken)) if rest == BROKEN_EVERY // 2 else None


def all_broken(users: int) -> dict[str, Broken]:
    numbers = range(BROKEN_EVERY // 2, users, BROKEN_EVERY)
    return {user(n): kind for n in numbers if (kind := broken(n)) is not None}


_COPY = """
local prefix, sample_user, sample_task, sample_worker = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local function of(name, user) return name .. ':{' .. user .. '}' end
local function sample(name)
  local flat, own = redis.call('HGETALL', of(name, sample_user)), {}
  for i = 2, #flat, 2 do
    if flat[i] == sample_task then own.task = i elseif flat[i] == sample_worker then own.worker = i end
  end
  return function(user, task, worker)
    flat[own.task], flat[own.worker] = task, worker
    redis.call('HSET', of(name, user), unpack(flat))
  end
end
local write_desired, write_mark = sample('worker:desired'), sample('worker:active')
local epoch = redis.call('GET', of('worker:epoch', sample_user))
local state = redis.call('GET', of('worker:state', sample_user))
local history = redis.call('LRANGE', of('worker:history', sample_user), 0, -1)
for i = 5, #ARGV, 3 do
  local user, number, kind = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local task, worker = prefix .. number, 'w-' .. string.sub(number, -16)
  write_desired(user, task, worker)
  redis.call('SET', of('worker:epoch', user), epoch)
  redis.call('RPUSH', of('worker:history', user), unpack(history))
  if kind == '-' then
    write_mark(user, task, worker)
    redis.call('PEXPIRE', of('worker:active', user), 3600000)
    redis.call('SET', of('worker:state', user), state, 'PX', 3600000)
  elseif kind == '2' then
    redis.call('HSET', of('worker:desired', user), 'missing_since', '1')
  elseif kind == '3' then
    redis.call('HDEL', of('worker:desired', user), 'task_id')
  end
  if kind ~= '3' then redis.call('SET', 'task:owner:{' .. task .. '}', user, 'EX', 86400) end
end
"""


def populate(store: Store, users: int) -> None:
    """Every user as the real steps leave one that has been ready for a while, copied from a sample."""
    sample_user, sample_task, sample_worker = "sample", task(0), "w-" + "0" * 16
    _live_sample(store, sample_user, sample_task, sample_worker)
    copy = store.client.register_script(_COPY)
    for first in range(0, users, _CHUNK):
        buckets: dict[int, list[str]] = {}
        words: list[Any] = [_ARN, sample_user, sample_task, sample_worker]
        for number in range(first, min(first + _CHUNK, users)):
            kind = broken(number)
            words += [user(number), f"{number:032x}", "-" if kind is None else int(kind)]
            buckets.setdefault(keys.bucket_of(user(number)), []).append(user(number))
        copy(args=words)
        store.run(*(command("SADD", keys.index(b), *names, parse=int) for b, names in buckets.items()))
    store.client.delete(*keys.user_keys(sample_user))


def _live_sample(store: Store, name: str, task_id: str, worker_id: str) -> None:
    now_ms = round(time.time() * 1000)
    begin = store.one(
        steps.begin_start(name, Cause.START, now_ms, "0f8fad5b-d9cb-469f-a165-70867728950e", "c/1")
    )
    assert isinstance(begin, steps.Begin)
    store.one(steps.bind_start(name, begin.epoch, task_id))
    given = Assignment(name, begin.epoch, Via.COLD, Cause.START, now_ms, begin.command_id, "c/1")
    assert store.one(steps.take_mark(given, worker_id, task_id, "v1"))[0] == "taken"
    state = (
        '{"phase":"ready","pid":1,"host":"ip-10-0-12-34.eu-west-1.compute.internal",'
        f'"worker_id":"{worker_id}","positions":3,"orders":12,"reason":""}}'
    )
    for ready in (False, True):
        store.one(steps.beat_mark(given, worker_id, task_id, "v1", state, ready=ready))
    for leased in (keys.active(name), keys.state(name)):
        store.client.persist(leased)


class FakeEcs:
    """The calls of the ECS client that a sweep makes, counted: pages of 100, at most 100 ids a question."""

    def __init__(self, users: int) -> None:
        self.calls: Counter[str] = Counter()
        self.stopped: list[str] = []
        self._users = users
        self._gone: set[str] = set()
        self._pages: dict[int, tuple[list[str], int]] = {}

    def list_tasks(self, **request: Any) -> dict[str, Any]:
        self.calls["ListTasks"] += 1
        assert request["maxResults"] <= blueprint.LIST_TASKS_PAGE
        if request["startedBy"] != "muster/user":
            return {"taskArns": []}
        first = int(request.get("nextToken", 0))
        if first not in self._pages:
            self._pages[first] = self._page(first, request["maxResults"])
        listed, following = self._pages[first]
        listed = [task_id for task_id in listed if task_id not in self._gone]
        return {"taskArns": listed} | ({"nextToken": str(following)} if following else {})

    def _page(self, first: int, most: int) -> tuple[list[str], int]:
        """Kept once made: what it costs to be ECS is no part of a sweep."""
        listed: list[str] = []
        all_of = self._users + self._users // ORPHAN_EVERY
        while first < all_of and len(listed) < most:
            if broken(first) in (None, Broken.HUNG):
                listed.append(task(first))
            first += 1
        return listed, first if first < all_of else 0

    def describe_tasks(self, *, tasks: list[str], **_: Any) -> dict[str, Any]:
        self.calls["DescribeTasks"] += 1
        assert len(tasks) <= blueprint.DESCRIBE_TASKS_MAX
        found, missing = [], []
        for task_id in tasks:
            number = number_of(task_id)
            kind = broken(number) if number < self._users else None
            if kind in (Broken.FORGOTTEN, Broken.NEVER) or task_id in self._gone:
                missing.append({"arn": task_id, "reason": "MISSING"})
                continue
            status = "STOPPED" if kind is Broken.ENDED else "RUNNING"
            owner = {"muster:kind": "user", "muster:owner": "gone", "muster:epoch": "1"}
            tags = [{"key": key, "value": value} for key, value in owner.items()]
            found.append({"taskArn": task_id, "lastStatus": status, "startedAt": _STARTED, "tags": tags})
        return {"tasks": found, "failures": missing}

    def stop_task(self, *, task: str, **_: Any) -> dict[str, Any]:
        self.calls["StopTask"] += 1
        self.stopped.append(task)
        if number_of(task) >= self._users:
            self._gone.add(task)
        return {}


class FakeSqs:
    """Takes repairs, in tens."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.groups: list[str] = []

    def send_message_batch(self, *, Entries: list[dict[str, Any]], **_: Any) -> dict[str, Any]:  # noqa: N803
        self.calls["SendMessageBatch"] += 1
        assert len(Entries) <= blueprint.SQS_BATCH_MAX
        self.groups += [entry["MessageGroupId"] for entry in Entries]
        return {"Successful": [{"Id": entry["Id"]} for entry in Entries]}
