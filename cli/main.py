"""`muster`: the table of contents of the command line. Each command is imported when it is run."""

from __future__ import annotations

import typer

from cli.lazy import LazyCommand, group_of

COMMANDS = (
    LazyCommand("up", "cli.up:up", "Run the whole system on this machine until Ctrl-C."),
    LazyCommand("demo", "cli.demo:demo", "Watch it start, heal and stop a small fleet, with figures."),
    LazyCommand("start", "cli.workers:app", "Start users' workers."),
    LazyCommand("stop", "cli.workers:app", "Stop users' workers."),
    LazyCommand("restart", "cli.workers:app", "Replace users' workers by fresh ones."),
    LazyCommand("status", "cli.workers:app", "Show one user's worker, or the whole fleet in numbers."),
    LazyCommand("ls", "cli.workers:app", "List workers."),
    LazyCommand("explain", "cli.workers:app", "Say why a worker is as it is, and what comes next."),
    LazyCommand("logs", "cli.workers:app", "Show a worker's output."),
    LazyCommand("top", "cli.top:top", "Watch the fleet in the terminal, and command it from there."),
    LazyCommand(
        "pool", "cli.pool:app", "Show the warm pool, set its target, or replay what it might have been."
    ),
    LazyCommand("queues", "cli.fleet:app", "Show every queue with what waits in it."),
    LazyCommand("dlq", "cli.dlq:app", "Look at messages that were given up, send them again or drop them."),
    LazyCommand("jobs", "cli.jobs:app", "Finite work on workers that exist only while there is work."),
    LazyCommand("chaos", "cli.chaos:chaos", "Break everything around the workers, and audit from outside."),
    LazyCommand("sim", "cli.sim:app", "Live through seeded histories of the real code on virtual time."),
    LazyCommand("supervise", "cli.supervise:supervise", "Keep one process per key of a file alive."),
    LazyCommand("market", "cli.market:market", "Serve market data to a host's strategies."),
    LazyCommand("capacity", "cli.capacity:capacity", "Reckon how many workers one instance holds, and why."),
    LazyCommand("cost", "cli.cost:cost", "Reckon what a fleet costs."),
    LazyCommand("paper-broker", "cli.paper:paper_broker", "Serve a broker to practise on."),
    LazyCommand("token", "cli.token:token", "Print a token for this machine's API or its page."),
    LazyCommand("doctor", "cli.doctor:app", "Check this machine and print the fix for what is wrong."),
    LazyCommand("version", "cli.doctor:app", "Print the version."),
)

app = typer.Typer(
    name="muster",
    cls=group_of(*COMMANDS),
    no_args_is_help=True,
    help="Exactly one live worker per user, started from a warm pool, healed without a person.",
    epilog="Exit codes: 0 ok, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unreachable.",
)


@app.callback()
def root() -> None:
    """Exactly one live worker per user, started from a warm pool, healed without a person."""


def main() -> None:
    app()


if __name__ == "__main__":
    main()
