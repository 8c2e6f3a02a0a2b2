"""A file of triggers on the command line: read it, and say what cron has to be told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from cli.session import Cli, Code, Failure
from muster.errors import Refused
from muster.jobs.triggers import Trigger, TriggerType, cron_line, load


def read(file: Path) -> list[Trigger]:
    """The triggers of a file; a bad one ends the command."""
    try:
        return load(file)
    except Refused as wrong:
        raise Failure(Code.USAGE, str(wrong)) from wrong


def rows_of(triggers: Sequence[Trigger], cli: Cli, url: str) -> list[dict[str, Any]]:
    """One row per trigger; `cron` is its line for the crontab, if cron is what calls it."""
    asked = _who_is_asked(cli, url)
    return [
        {
            "name": trigger.name,
            "type": trigger.type.value,
            "pool": trigger.pool,
            "on": trigger.on,
            "cron": cron_line(trigger, asked) if trigger.type is TriggerType.CRON else None,
        }
        for trigger in triggers
    ]


def _who_is_asked(cli: Cli, url: str) -> list[str]:
    """The options by which a command finds its pools from wherever cron runs it."""
    if url.startswith("sqlite:///"):
        file, _, more = url.removeprefix("sqlite:///").partition("?")
        url = f"sqlite:///{quote(str(Path(unquote(file)).absolute()))}{'?' + more if more else ''}"
    if url:
        return ["--url", url]
    if cli.api_url:
        return ["--api-url", cli.api_url]
    return ["--dir", str(cli.folder.absolute())]
