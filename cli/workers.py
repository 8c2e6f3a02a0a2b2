"""`muster start|stop|restart|status|ls|explain|logs`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.text import Text

from cli.session import Cli, Code, Failure, add, command, path, table
from cli.waiting import Done, Waiting, is_restarted, is_started, is_stopped
from muster.model import Phase

app = typer.Typer(no_args_is_help=True)

Users = Annotated[list[str], typer.Argument(metavar="USER", help="One or more users.")]
User = Annotated[str, typer.Argument(metavar="USER", help="The user.")]
Wait = Annotated[bool, typer.Option("--wait", help="Return when it is done, and show progress.")]
Timeout = Annotated[float, typer.Option(min=0, help="Seconds to wait at most, with --wait.")]
Reason = Annotated[str, typer.Option(help="Why; 'explain' and the log repeat it.")]

_WAIT_S = 120.0
_FOLLOW_EVERY_S = 0.5
_AT_ONCE = 8
_PAGE = 1000

_COLOURS: dict[str, str] = {
    Phase.READY: "green",
    Phase.STARTING: "cyan",
    Phase.CONNECTING: "cyan",
    Phase.DRAINING: "yellow",
    Phase.BACKING_OFF: "yellow",
    Phase.FAILED: "red",
    Phase.STOPPED: "dim",
}


@app.command()
@command
def start(
    cli: Cli,
    users: Users,
    credentials: Annotated[str, typer.Option(help="Where the users' credentials are.")] = "",
    reason: Reason = "",
    wait: Wait = False,
    timeout: Timeout = _WAIT_S,
) -> None:
    """Start users' workers. Already running ones stay as they are.

    Example: muster start u1 u2 --wait
    """
    _send(cli, "start", users, {"credentials_ref": credentials, "reason": reason}, wait, timeout, is_started)


@app.command()
@command
def stop(cli: Cli, users: Users, reason: Reason = "", wait: Wait = False, timeout: Timeout = _WAIT_S) -> None:
    """Stop users' workers; no worker starts for them again without a newer command.

    Example: muster stop u1 --wait
    """
    _send(cli, "stop", users, {"reason": reason}, wait, timeout, is_stopped)


@app.command()
@command
def restart(
    cli: Cli, users: Users, reason: Reason = "", wait: Wait = False, timeout: Timeout = _WAIT_S
) -> None:
    """Replace users' workers by fresh ones; the old ones may not act from the same moment.

    Example: muster restart u1 --wait
    """
    _send(cli, "restart", users, {"reason": reason}, wait, timeout, is_restarted)


@app.command()
@command
def status(
    cli: Cli, user: Annotated[str, typer.Argument(metavar="[USER]", help="None: the whole fleet.")] = ""
) -> None:
    """Show one user's worker, or the whole fleet in numbers.

    Example: muster status u1
    """
    if user:
        worker = cli.call("GET", path(user))
        cli.show(worker, _details(worker))
        return
    counts = cli.call("GET", "/v1/workers", params={"limit": 1})["counts"]
    fleet = {"counts": counts, "pool": cli.call("GET", "/v1/pool"), "queues": cli.call("GET", "/v1/queues")}
    lines = table("", "")
    for phase, count in counts.items():
        add(lines, coloured(phase), str(count))
    pool = fleet["pool"]
    add(lines, "pool", f"{pool['idle']} idle of {pool['target']}, {pool['launching']} launching")
    for queue in fleet["queues"]:
        add(lines, queue["name"], f"{queue['depth']} waiting, {queue['dead_letter'] or 0} given up")
    cli.show(fleet, lines)


@app.command()
@command
def ls(
    cli: Cli,
    phase: Annotated[Phase | None, typer.Option(help="Only workers in this phase.")] = None,
    q: Annotated[str, typer.Option(help="Only users with this in their id or reason.")] = "",
    sort: Annotated[
        str, typer.Option(help="user_id, phase, since, failures or start_latency_ms; -x turns it round.")
    ] = "user_id",
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
    cursor: Annotated[str, typer.Option(help="Where the page before ended.")] = "",
) -> None:
    """List workers.

    Example: muster ls --phase backing_off --sort -failures
    """
    query = {"sort": sort, "q": q} | ({"phase": phase.value} if phase else {})
    workers: list[Any] = []
    following: str | None = cursor
    while following is not None and len(workers) < limit:
        params = {**query, "limit": min(limit - len(workers), _PAGE), "cursor": following}
        page = cli.call("GET", "/v1/workers", params=params)
        workers += page["workers"]
        following = page["next_cursor"]
    rows = table("user", "phase", "since", "via", "beat", "start ms", "failures", "reason")
    for worker in workers:
        add(
            rows,
            worker["user_id"],
            coloured(worker["phase"]),
            ago(worker["since"]),
            worker["via"] or "-",
            "-" if worker["heartbeat_age_s"] is None else f"{worker['heartbeat_age_s']:.0f} s",
            dash(worker["start_latency_ms"]),
            str(worker["failures"]),
            worker["reason"] or "",
        )
    cli.show(page | {"workers": workers, "next_cursor": following}, rows)
    if following is not None and not cli.as_json:
        cli.words.print(f"{len(workers)} of {page['total']}; go on with --cursor {following}")


@app.command()
@command
def explain(cli: Cli, user: User) -> None:
    """Say why a worker is as it is, and what comes next.

    Example: muster explain u1
    """
    told = cli.call("GET", f"{path(user)}/explain")
    lines = table("when", "event", "detail", "why")
    for line in told["history"]:
        add(lines, _clock(line["at"]), line["event"], line["detail"], line["why"])
    following = told["next"]
    due = f", by {_clock(following['by'])}" if following["by"] else ""
    ahead = f"next: {following['action']}{due}: {following['why']}"
    cli.show(told, _details(told["worker"]), "", lines, "", ahead)


@app.command()
@command
def logs(
    cli: Cli,
    user: User,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=10_000, help="How many to begin with.")
    ] = 100,
) -> None:
    """Show a worker's output; with -f also its successor's, when it is replaced.

    Example: muster logs u1 -f
    """
    params: dict[str, Any] = {"lines": lines}
    while True:
        page = cli.call("GET", f"{path(user)}/logs", params=params)
        for line in page["lines"]:
            typer.echo(json.dumps({"task_id": page["task_id"], "line": line}) if cli.as_json else line)
        if not follow:
            return
        params["cursor"] = page["cursor"]
        time.sleep(_FOLLOW_EVERY_S)


def _send(
    cli: Cli, action: str, users: Sequence[str], said: dict[str, str], wait: bool, timeout: float, done: Done
) -> None:
    users = list(dict.fromkeys(users))
    body = {name: value for name, value in said.items() if value}
    # Read before the command goes, so that what it does can be told from what was.
    waiting = Waiting(cli, users, done) if wait else None

    def send(user: str) -> dict[str, Any]:
        accepted: dict[str, Any] = cli.call("POST", f"{path(user)}/{action}", json=body)
        return {"user_id": user, "action": action, **accepted}

    with ThreadPoolExecutor(_AT_ONCE) as at_once:
        sent = list(at_once.map(send, users))
    if waiting is None:
        cli.show(sent, *(f"{one['user_id']} {action} accepted as {one['command_id']}" for one in sent))
        return
    waiting.wait(action, timeout)
    rows = table("user", "phase", "via", "start ms", "reason")
    for user in users:
        worker = waiting.seen[user] or {}
        latency = dash(worker.get("start_latency_ms"))
        phase = coloured(worker.get("phase", "unknown"))
        add(rows, user, phase, worker.get("via") or "-", latency, worker.get("reason") or "")
    cli.show([{**one, "worker": waiting.seen[one["user_id"]]} for one in sent], rows)
    if bad := [user for user in users if not waiting.well(user)]:
        why = f"{len(bad)} of {len(users)} not done after {timeout:g} s, or failed"
        raise Failure(Code.FAILED, f"{action}: {why}; 'muster explain {bad[0]}' says why")


def coloured(phase: str) -> Text:
    return Text(phase, style=_COLOURS.get(phase, ""))


def dash(value: object) -> str:
    return "-" if value is None else str(value)


def _clock(moment: str) -> str:
    return datetime.fromisoformat(moment).astimezone().strftime("%H:%M:%S.%f")[:-3]


def ago(moment: str | None) -> str:
    if moment is None:
        return "-"
    seconds = max(0, round((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _details(worker: dict[str, Any]) -> Any:
    lines = table("", "")
    for name, value in worker.items():
        add(lines, name, coloured(value) if name == "phase" else dash(value))
    return lines
