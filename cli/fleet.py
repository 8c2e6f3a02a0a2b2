"""`muster queues`."""

from __future__ import annotations

from typing import Any

import typer

from cli.session import Cli, add, command, table

app = typer.Typer(no_args_is_help=True)


@app.command()
@command
def queues(cli: Cli) -> None:
    """Show every queue with what waits in it."""
    found: list[dict[str, Any]] = cli.call("GET", "/v1/queues")
    rows = table("queue", "waiting", "in flight", "given up")
    for queue in found:
        given_up = "-" if queue["dead_letter"] is None else str(queue["dead_letter"])
        add(rows, queue["name"], str(queue["depth"]), str(queue["in_flight"]), given_up)
    cli.show(found, rows)
    if any(queue["dead_letter"] for queue in found):
        cli.words.print("given-up messages: 'muster dlq ls' shows them with their reasons")
