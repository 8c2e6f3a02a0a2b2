"""`muster dlq ls|show|redrive|purge`: messages that were given up."""

from __future__ import annotations

import sys
from typing import Annotated, Any
from urllib.parse import quote

import typer

from cli.session import Cli, Code, Failure, add, command, table
from muster.blueprint import WORKER_CONTROL

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Messages that were given up.")

Queue = Annotated[str, typer.Option(help="The queue that gave them up.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, change nothing.")]


@app.command()
@command
def ls(
    cli: Cli,
    queue: Queue = WORKER_CONTROL.name,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many at most.")] = 50,
) -> None:
    """List them with their reasons.

    Example: muster dlq ls --queue order-tasks.fifo
    """
    letters = _list(cli, queue, limit)
    rows = table("message", "for", "sent", "reason", "body")
    for letter in letters:
        reason = letter["reason"] or "failed too often"
        sent_at = letter["sent_at"][:19]
        add(rows, letter["message_id"], letter["group"] or "-", sent_at, reason, letter["body"][:80])
    cli.show(letters, rows)


@app.command()
@command
def show(
    cli: Cli, message: Annotated[str, typer.Argument(help="Its id.")], queue: Queue = WORKER_CONTROL.name
) -> None:
    """Show one message whole.

    Example: muster dlq show 5fea7756-0ea4-451a-a703-a558b933e274
    """
    letter = cli.call("GET", f"{_path(queue)}/{quote(message, safe='')}")
    lines = table("", "")
    for name, value in letter.items():
        add(lines, name, "-" if value is None else str(value))
    cli.show(letter, lines)


@app.command()
@command
def redrive(
    cli: Cli,
    message: Annotated[str, typer.Argument(metavar="[MESSAGE]", help="Its id; none sends them all.")] = "",
    queue: Queue = WORKER_CONTROL.name,
    dry_run: DryRun = False,
) -> None:
    """Send them round again. A command that a newer one has overtaken stays overtaken.

    Example: muster dlq redrive --dry-run
    """
    path = f"{_path(queue)}/{quote(message, safe='')}" if message else _path(queue)
    if dry_run:
        found = [cli.call("GET", path)] if message else _list(cli, queue, 500)
        cli.show({"redriven": 0, "would_redrive": len(found)}, f"would send {len(found)}")
        return
    moved = cli.call("POST", f"{path}/redrive")
    cli.show(moved, f"sent {moved['redriven']} again")


@app.command()
@command
def purge(
    cli: Cli,
    queue: Queue = WORKER_CONTROL.name,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Throw them away for good.

    Example: muster dlq purge --yes
    """
    if dry_run:
        count = len(_list(cli, queue, 500))
        cli.show({"purged": 0, "would_purge": count}, f"would throw away {count}")
        return
    if not yes:
        if not sys.stdin.isatty():
            raise Failure(Code.USAGE, "this cannot be undone; say --yes")
        typer.confirm(f"Throw away every given-up message of {queue}?", abort=True, err=True)
    purged = cli.call("DELETE", _path(queue))
    cli.show(purged, f"threw away {purged['purged']}")


def _path(queue: str) -> str:
    return f"/v1/queues/{quote(queue, safe='')}/dead-letters"


def _list(cli: Cli, queue: str, limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cli.call("GET", _path(queue), params={"limit": limit})
    return found
