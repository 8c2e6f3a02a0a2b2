"""`muster cost`: what a fleet costs a month, idle and with users."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from muster.blueprint import WORKER_PROFILES
from muster.cost import (
    FOOTPRINTS,
    WORKER_INSTANCES,
    Load,
    Prices,
    compute_of,
    million_starts,
    monthly,
    worker_hosts,
)


def cost(
    users: Annotated[int, typer.Option(help="Users with a worker.", min=0)] = 1000,
    profile: Annotated[
        str, typer.Option(help=f"How instances are filled: {', '.join(WORKER_PROFILES)}.")
    ] = "seed",
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
    if profile not in WORKER_PROFILES:
        raise typer.BadParameter(f"choose one of {', '.join(WORKER_PROFILES)}", param_hint="--profile")
    footprint, prices, fleet = FOOTPRINTS[environment], Prices.load(), WORKER_PROFILES[profile]
    load = Load(users, starts, orders, traffic_gb, own_credentials)
    idle, used = (monthly(footprint, some, prices, fleet) for some in (Load(), load))
    thousand = Load(1000, starts, orders, traffic_gb, own_credentials)
    rest = sum(usd for part, usd in monthly(footprint, thousand, prices).items() if part != WORKER_INSTANCES)
    compute, per_million = compute_of(footprint, thousand, prices), million_starts(prices)
    if as_json:
        answer = {
            "environment": environment,
            "profile": profile,
            "users": users,
            "worker_hosts": worker_hosts(footprint, users, fleet),
            "prices": {"date": prices.date.isoformat(), "region": prices.region, "currency": "USD"},
            "idle": {part: round(value, 2) for part, value in idle.items()},
            "used": {part: round(value, 2) for part, value in used.items()},
            "idle_total": round(sum(idle.values()), 2),
            "used_total": round(sum(used.values()), 2),
            "thousand_users": {
                way: {"compute": round(usd, 2), "total": round(usd + rest, 2)} for way, usd in compute.items()
            },
            "million_starts": round(per_million, 2),
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
    ways = Table("USD a month for 1,000 users", "compute", "whole bill")
    for column in ways.columns[1:]:
        column.justify = "right"
    for way, usd in compute.items():
        ways.add_row(way, f"{usd:,.0f}", f"{usd + rest:,.0f}")
    console = Console()
    console.print(rows)
    console.print(ways)
    typer.echo(f"A million starts cost {per_million:.2f} USD (messages, claims, function runs).", err=True)
    if users:
        typer.echo(f"{sum(used.values()) / users:.2f} USD per user", err=True)
    typer.echo(f"List prices of {prices.region}, {prices.date:%Y-%m-%d} (muster/prices.toml).", err=True)
