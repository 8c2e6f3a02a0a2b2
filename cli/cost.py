"""`muster cost`: what a fleet costs a month, idle and with users."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from muster.cost import FOOTPRINTS, Load, Prices, monthly, worker_hosts


def cost(
    users: Annotated[int, typer.Option(help="Users with a worker.", min=0)] = 1000,
    environment: Annotated[str, typer.Option(help=f"One of {', '.join(FOOTPRINTS)}.")] = "prod",
    starts: Annotated[float, typer.Option(help="Starts per user and day.", min=0)] = 1.0,
    orders: Annotated[float, typer.Option(help="Orders per user and day.", min=0)] = 10.0,
    traffic_gb: Annotated[float, typer.Option(help="GB per user and month through NAT.", min=0)] = 0.1,
    own_credentials: Annotated[bool, typer.Option(help="One secret per user.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Stable fields for programs.")] = False,
) -> None:
    """Estimate the AWS bill from list prices: idle, and with USERS. Asks nobody, changes nothing.

    Example: muster cost --environment prod --users 1000
    """
    if environment not in FOOTPRINTS:
        raise typer.BadParameter(f"choose one of {', '.join(FOOTPRINTS)}", param_hint="--environment")
    footprint, prices = FOOTPRINTS[environment], Prices.load()
    load = Load(users, starts, orders, traffic_gb, own_credentials)
    idle, used = monthly(footprint, Load(), prices), monthly(footprint, load, prices)
    if as_json:
        answer = {
            "environment": environment,
            "users": users,
            "worker_hosts": worker_hosts(footprint, users),
            "prices": {"date": prices.date.isoformat(), "region": prices.region, "currency": "USD"},
            "idle": {part: round(value, 2) for part, value in idle.items()},
            "used": {part: round(value, 2) for part, value in used.items()},
            "idle_total": round(sum(idle.values()), 2),
            "used_total": round(sum(used.values()), 2),
        }
        typer.echo(json.dumps(answer))
        return
    rows = Table("USD a month", "idle", f"{users:,} users", show_footer=False)
    for column in rows.columns[1:]:
        column.justify = "right"
    for part in used:
        rows.add_row(part, f"{idle[part]:,.0f}", f"{used[part]:,.0f}")
    rows.add_section()
    rows.add_row("total", f"{sum(idle.values()):,.0f}", f"{sum(used.values()):,.0f}")
    Console().print(rows)
    if users:
        typer.echo(f"{sum(used.values()) / users:.2f} USD per user", err=True)
    typer.echo(f"List prices of {prices.region}, {prices.date:%Y-%m-%d} (muster/prices.toml).", err=True)
