"""Triggers: what makes a pool check its capacity. Nothing here runs by itself; no daemon is needed.

A file of them (`triggers.yml`) takes the place of the check that every push, resume, rerun and redrive makes
otherwise. The API reads it (`MUSTER_JOB_TRIGGERS`, `muster up --triggers`), and
`muster jobs push --triggers`.

| type | who calls | what it does |
| --- | --- | --- |
| cron | the machine's cron: `muster jobs triggers FILE` prints its lines | `muster jobs check POOL` |
| webhook | `work_added`, in this process | `POST /v1/pools/POOL/check` to another API |
| lambda | `work_added`, in this process | invokes pool_manager with the pool's id |
| subprocess | `work_added`, in this process | starts a new process for the check and forgets it |
| in-loop | `work_added`, in this process | checks on a thread of its own; the caller does not wait |
"""

from __future__ import annotations

import json
import logging
import re
import shlex
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from muster.errors import Refused
from muster.functions import job_pool_event
from muster.jobs.model import POOL_NAME

log = logging.getLogger(__name__)

WORK_ADDED = "work_added"
POOL_MANAGER = "pool_manager"
_WEBHOOK_TIMEOUT_S = 5.0
_KEYS = {"name", "type", "input", "schedule", "on", "url", "token_file", "function", "machine"}
#: What other engines call the one thing a trigger of ours can start.
_MACHINE = "parallelization_checker"
#: Five fields, or a name such as @hourly. Cron itself knows the rest.
_SCHEDULE = re.compile(r"@[a-z]+|\S+( +\S+){4}")


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
    function: str = POOL_MANAGER


@dataclass(frozen=True, slots=True)
class Effects:
    """How triggers reach the world. `check` is the capacity check itself, made for one pool; at `jobs_url` a
    new process finds the same pools."""

    check: Callable[[str], object]
    jobs_url: str
    invoke: Callable[[str, Mapping[str, Any]], object] = field(
        default=lambda name, event: _invoke(name, event)
    )
    spawn: Callable[[list[str]], object] = field(default=lambda command: spawn(command))


def load(path: Path) -> list[Trigger]:
    """The triggers of a file; a mistake is refused with the file, and the name of the trigger that has it."""
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise Refused(f"triggers {path}: {' '.join(str(error).split())}") from error
    entries = read.get("triggers") if isinstance(read, dict) else None
    if not isinstance(entries, list):
        raise Refused(f"triggers {path}: it must hold a list named 'triggers'; examples/triggers.yml is one")
    found: list[Trigger] = []
    for n, entry in enumerate(entries, 1):
        if not (isinstance(entry, dict) and entry.get("name")):
            raise Refused(f"triggers {path}: entry {n} must be a mapping with a name and a type")
        # YAML 1.1 reads the key `on` as the boolean true.
        told = {str("on" if key is True else key): value for key, value in entry.items()}
        name = str(told["name"])
        if wrong := "used twice" if name in {other.name for other in found} else _mistake(told):
            raise Refused(f"triggers {path}: trigger {name}: {wrong}")
        found.append(
            Trigger(
                name=name,
                type=TriggerType(told["type"]),
                pool=(told.get("input") or {}).get("pool_id"),
                schedule=told.get("schedule"),
                on=told.get("on"),
                url=told.get("url"),
                token_file=Path(told["token_file"]) if told.get("token_file") else None,
                function=told.get("function", POOL_MANAGER),
            )
        )
    return found


def _mistake(told: Mapping[str, Any]) -> str | None:
    """What is wrong with one entry, and what to write instead."""
    kind, given = told.get("type"), told.get("input") or {}
    pool = given.get("pool_id") if isinstance(given, dict) else None
    unknown = sorted(set(told) - _KEYS)
    not_text = [key for key in sorted(set(told) - {"input"}) if not isinstance(told[key], str)]
    checks: tuple[tuple[object, str], ...] = (
        (str(kind) not in set(TriggerType), f"the type must be one of {', '.join(TriggerType)}"),
        (unknown, f"{', '.join(unknown)}: no such key; there are {', '.join(sorted(_KEYS))}"),
        (not_text, f"{', '.join(not_text)} must be text"),
        (not isinstance(given, dict) or set(given) - {"pool_id"}, "input may hold pool_id and nothing else"),
        (pool is not None and not _is_pool(pool), f"{pool!r} is no name of a pool"),
        (told.get("machine", _MACHINE) != _MACHINE, f"the only machine is {_MACHINE}: a check of the pool"),
    )
    if wrong := next((text for fails, text in checks if fails), None):
        return wrong
    if kind == TriggerType.CRON:
        if not (pool and _SCHEDULE.fullmatch(str(told.get("schedule", "")))):
            return "a cron trigger needs input.pool_id and a schedule such as '*/5 * * * *'"
        return "cron calls it; take out 'on'" if "on" in told else None
    if told.get("on") != WORK_ADDED:
        return f"without 'on: {WORK_ADDED}' nothing would ever start it; there is no other event"
    if kind == TriggerType.WEBHOOK and not str(told.get("url", "")).startswith(("http://", "https://")):
        return "a webhook trigger needs the url of an API, https://..."
    return None


def _is_pool(name: object) -> bool:
    return isinstance(name, str) and re.fullmatch(POOL_NAME, name) is not None


def cron_line(trigger: Trigger, options: Sequence[str]) -> str:
    """The crontab line of a cron trigger; `options` say who is asked. To cron a bare % is a line's end."""
    words = ["muster", "jobs", "check", str(trigger.pool), *options]
    return f"{trigger.schedule} {shlex.join(words)}".replace("%", "\\%")


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
            effects.invoke(trigger.function, job_pool_event(pool))


def on_work_added(triggers: Sequence[Trigger], effects: Effects) -> Callable[[str], None]:
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
    url = f"{str(trigger.url).rstrip('/')}/v1/pools/{pool}/check"
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


def spawn(command: list[str], env: Mapping[str, str] | None = None) -> None:
    """A process that nobody waits for."""
    subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
