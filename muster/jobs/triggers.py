"""Triggers: what makes a pool check its capacity. Nothing here runs by itself; no daemon is needed.

| type | who calls | what it does |
| --- | --- | --- |
| cron | the machine's cron, with `cron_line` | `muster jobs check POOL` |
| webhook | whoever adds work | `POST /v1/pools/POOL/check` |
| lambda | EventBridge or the API | invokes pool_manager with the pool's id |
| subprocess | `work_added`, in this process | starts a new process for the check and forgets it |
| in-loop | `work_added`, in this process | checks on a thread of its own; the caller does not wait |
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from muster.errors import Refused

log = logging.getLogger(__name__)

WORK_ADDED = "work_added"
_WEBHOOK_TIMEOUT_S = 5.0


class TriggerType(StrEnum):
    CRON = "cron"  #: an external cron calls the CLI
    WEBHOOK = "webhook"  #: an HTTP call to the API
    LAMBDA = "lambda"  #: an invocation of pool_manager
    SUBPROCESS = "subprocess"  #: a new process, fire and forget
    IN_LOOP = "in-loop"  #: inline, without blocking the caller


@dataclass(frozen=True, slots=True)
class Trigger:
    """One entry of `triggers.yml`. `pool` None means: the pool the event is about."""

    name: str
    type: TriggerType
    pool: str | None = None
    schedule: str | None = None
    on: str | None = None
    url: str | None = None
    token_file: Path | None = None  #: a webhook's bearer token, read anew each time
    function: str = "pool_manager"


@dataclass(frozen=True, slots=True)
class Effects:
    """How triggers reach the world. `check` is the capacity check itself, made for one pool."""

    check: Callable[[str], object]
    jobs_url: str
    invoke: Callable[[str, Mapping[str, Any]], object] = field(
        default=lambda name, event: _invoke(name, event)
    )
    spawn: Callable[[list[str]], object] = field(default=lambda command: _spawn(command))


def load(path: Path) -> list[Trigger]:
    """The triggers of a file; a mistake is refused with the name of the trigger that has it."""
    entries = yaml.safe_load(path.read_text(encoding="utf-8"))["triggers"]
    return [_parse(entry) for entry in entries]


def _parse(entry: Mapping[Any, Any]) -> Trigger:
    name = str(entry.get("name", "?"))
    try:
        trigger = Trigger(
            name=name,
            type=TriggerType(entry["type"]),
            pool=(entry.get("input") or {}).get("pool_id"),
            schedule=entry.get("schedule"),
            # YAML 1.1 reads the key `on` as the boolean true.
            on=entry.get("on", entry.get(True)),
            url=entry.get("url"),
            token_file=Path(entry["token_file"]) if entry.get("token_file") else None,
            function=entry.get("function", "pool_manager"),
        )
    except (KeyError, ValueError) as error:
        known = ", ".join(TriggerType)
        raise Refused(f"trigger {name}: {error}; the type must be one of {known}") from error
    if trigger.type is TriggerType.CRON and not (trigger.schedule and trigger.pool):
        raise Refused(f"trigger {name}: a cron trigger needs a schedule and input.pool_id")
    if trigger.type is TriggerType.WEBHOOK and not trigger.url:
        raise Refused(f"trigger {name}: a webhook trigger needs the url of the API")
    return trigger


def cron_line(trigger: Trigger, jobs_url: str) -> str:
    """The crontab line of a cron trigger."""
    return f"{trigger.schedule} muster jobs check {trigger.pool} --url {jobs_url}"


def fire(trigger: Trigger, pool: str, effects: Effects) -> None:
    """Start one check of `pool`. Never blocks on it and never raises into the path that added work."""
    try:
        _fire(trigger, pool, effects)
    except Exception as error:  # noqa: BLE001 - best effort: the slow schedule is the safety net
        log.warning("trigger %s for pool %s failed, the next check will do it: %s", trigger.name, pool, error)


def _fire(trigger: Trigger, pool: str, effects: Effects) -> None:
    match trigger.type:
        case TriggerType.CRON:
            effects.check(pool)
        case TriggerType.SUBPROCESS:
            command = [sys.executable, "-m", "cli.jobs", "check", pool, "--url", effects.jobs_url]
            effects.spawn(command)
        case TriggerType.IN_LOOP:
            threading.Thread(target=_quietly, args=(effects.check, pool), daemon=True).start()
        case TriggerType.WEBHOOK:
            threading.Thread(target=_quietly, args=(partial(_post, trigger), pool), daemon=True).start()
        case TriggerType.LAMBDA:
            effects.invoke(trigger.function, {"pool_id": pool})


def on_work_added(triggers: list[Trigger], effects: Effects) -> Callable[[str], None]:
    """The `work_added` callback of `muster.jobs.service`: fires every trigger registered for that event."""
    chosen = [trigger for trigger in triggers if trigger.on == WORK_ADDED]

    def work_added(pool: str) -> None:
        for trigger in chosen:
            if trigger.pool in (None, pool):
                fire(trigger, pool, effects)

    return work_added


def _quietly(call: Callable[[str], object], argument: str) -> None:
    try:
        call(argument)
    except Exception as error:  # noqa: BLE001 - nobody waits for this thread; the schedule tries again
        log.warning("check failed, the next one tries again: %s", error)


def _post(trigger: Trigger, pool: str) -> None:
    url = f"{trigger.url}/v1/pools/{pool}/check"
    if not url.startswith(("http://", "https://")):
        raise Refused(f"{url} is not an http address")
    request = urllib.request.Request(url, data=json.dumps({}).encode(), method="POST")  # noqa: S310
    request.add_header("Content-Type", "application/json")
    if trigger.token_file is not None:
        token = trigger.token_file.read_text(encoding="utf-8").strip()
        request.add_header("Authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=_WEBHOOK_TIMEOUT_S) as answer:  # noqa: S310
        answer.read()


def _invoke(function: str, event: Mapping[str, Any]) -> None:
    """Region, identity and endpoint are those of this process, as for any AWS tool."""
    import boto3

    boto3.client("lambda").invoke(
        FunctionName=function, InvocationType="Event", Payload=json.dumps(event).encode()
    )


def _spawn(command: list[str]) -> None:
    subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
