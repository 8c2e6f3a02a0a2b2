"""`muster pool`: the warm pool as it is, and `what-if`: as it would have been."""

from __future__ import annotations

import json
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.session import Cli, add, command, table
from muster import blueprint

app = typer.Typer(invoke_without_command=True)


@app.callback()
@command
def pool(
    cli: Cli,
    ctx: typer.Context,
    target: Annotated[int | None, typer.Option(min=0, help="Keep this many idle workers.")] = None,
) -> None:
    """Show the warm pool, or set its target.

    Example: muster pool --target 8
    """
    if ctx.invoked_subcommand:
        return
    if target is None:
        found = cli.call("GET", "/v1/pool")
    else:
        found = cli.call("PUT", "/v1/pool", json={"target": target})
    lines = table("", "")
    for name, value in found.items():
        add(lines, name, "-" if value is None else str(value))
    cli.show(found, lines)


class Synthetic(StrEnum):
    MONTH = "month"  #: 30 days with a rush at 13:30 UTC on weekdays


_POLICIES = ("adaptive", *(f"fixed:{size}" for size in (0, 2, 4, 8, 20, 50, 100, 200)))


@app.command("what-if")
def what_if(
    trace: Annotated[
        Path | None, typer.Option(help="Claims to replay: a CSV file with the columns at,user.")
    ] = None,
    synthetic: Annotated[
        Synthetic | None, typer.Option(help="Replay made-up claims: month has a market open on weekdays.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same made-up claims.")] = 7,
    policy: Annotated[
        list[str] | None, typer.Option(help="fixed:N or adaptive; may be repeated. Several without it.")
    ] = None,
    floor: Annotated[int, typer.Option(min=0, help="adaptive: never fewer (MUSTER_POOL_TARGET).")] = 1,
    cap: Annotated[int, typer.Option(min=0, help="adaptive: never more (MUSTER_POOL_CAP).")] = 300,
    window: Annotated[
        list[str] | None,
        typer.Option(help="adaptive: a line of the calendar, 'mon-fri 09:10-09:45 America/New_York 180'."),
    ] = None,
    refill_seconds: Annotated[
        float, typer.Option(min=0.1, help="From a launch until its worker waits.")
    ] = blueprint.POOL_REFILL.total_seconds(),
    svg: Annotated[Path | None, typer.Option(help="Draw the result here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Stable fields for programs.")] = False,
) -> None:
    """Replay claims against pool policies: hit rate, p99 start, worker-hours, dollars. Asks nobody.

    Example: muster pool what-if --synthetic month --svg pool.svg
    """
    from muster import pool_replay as replays
    from muster.cost import Prices, pool_usd
    from muster.errors import Refused
    from muster.pool_target import Window

    if (trace is None) == (synthetic is None):
        raise typer.BadParameter("give --trace FILE or --synthetic month", param_hint="--trace")
    refill = timedelta(seconds=refill_seconds)
    try:
        if trace is not None:
            claims, calendar = replays.read_trace(trace), window or []
        else:
            claims, calendar = replays.synthetic_month(seed), window or [replays.SYNTHETIC_WINDOW]
        windows = [Window.parse(line) for line in calendar]
        policies = {name: _policy(name, floor, cap, windows, refill) for name in policy or _POLICIES}
    except Refused as refused:
        raise typer.BadParameter(str(refused)) from refused
    if not claims:
        raise typer.BadParameter("there is not one claim in it", param_hint="--trace")
    done = [replays.replay(name, claims, how, refill) for name, how in policies.items()]
    prices = Prices.load()
    rows: list[dict[str, Any]] = [
        {
            "policy": row.name,
            "claims": row.claims,
            "hit_rate": round(row.hit_rate, 4),
            "p50_start_s": row.start_s(0.5),
            "p99_start_s": row.start_s(0.99),
            "idle_worker_hours": round(row.worker_hours, 1),
            "usd": round(pool_usd(row.worker_hours, prices), 2),
        }
        for row in done
    ]
    if svg is not None:
        from cli.pool_plot import draw

        draw(done, [row["usd"] for row in rows], svg)
        typer.echo(str(svg), err=True)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    lines = table("policy", "hit rate", "p99 start", "idle worker-hours", "USD")
    for row in rows:
        add(
            lines,
            row["policy"],
            f"{row['hit_rate']:.1%}",
            f"{row['p99_start_s'] * 1000:,.0f} ms",
            f"{row['idle_worker_hours']:,.0f}",
            f"{row['usd']:,.0f}",
        )
    Cli("", "", Path(), as_json=False).show(None, lines)
    typer.echo(
        f"{done[0].claims:,} claims in {done[0].days:.1f} days; calendar: {'; '.join(calendar) or 'empty'}; "
        f"a refill takes {refill_seconds:g} s. Prices of {prices.region}, {prices.date:%Y-%m-%d}.",
        err=True,
    )


def _policy(name: str, floor: int, cap: int, windows: list[Any], refill: timedelta) -> Any:
    from muster.errors import Refused
    from muster.pool_replay import adaptive, fixed

    kind, _, size = name.partition(":")
    if name == "adaptive":
        return adaptive(floor, cap, windows, refill)
    if kind == "fixed" and size.isdecimal() and len(size) <= 5:
        return fixed(int(size))
    raise Refused(f"{name!r} is no policy: write fixed:8 or adaptive")
