"""`muster pool` and `muster queues`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.session import Cli, add, command, table

app = typer.Typer(no_args_is_help=True)


@app.command()
@command
def pool(
    cli: Cli, target: Annotated[int | None, typer.Option(min=0, help="Keep this many idle workers.")] = None
) -> None:
    """Show the warm pool, or set its target.

    Example: muster pool --target 8
    """
    if target is None:
        found = cli.call("GET", "/v1/pool")
    else:
        found = cli.call("PUT", "/v1/pool", json={"target": target})
    lines = table("", "")
    for name, value in found.items():
        add(lines, name, "-" if value is None else str(value))
    cli.show(found, lines)


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
