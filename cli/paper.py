"""`muster paper-broker`: a broker to practise on, with every fault a real one has."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated

import typer

from local.paper.faults import Faults
from local.paper.server import PaperSettings, serve


def paper_broker(
    host: Annotated[
        str, typer.Option(help="Address to listen on; audits and faults ask for no key.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8765,
    seed: Annotated[int, typer.Option(help="Prices, fills and faults follow from it.")] = 1,
    book: Annotated[Path | None, typer.Option(help="SQLite file of the book; without it, memory.")] = None,
    accounts: Annotated[
        Path | None, typer.Option(help="JSON file of key ids and secrets.", exists=True, dir_okay=False)
    ] = None,
    open_accounts: Annotated[
        bool, typer.Option("--open-accounts", help="Every new key gets an account on its first use.")
    ] = False,
    cash: Annotated[float, typer.Option(help="What a new account starts with.", min=0)] = 1_000_000,
    fault: Annotated[
        list[str] | None, typer.Option(help="A knob, as name=value; may be repeated.", metavar="NAME=VALUE")
    ] = None,
) -> None:
    """Serve a paper broker that speaks Alpaca's trading API, until stopped.

    The address is printed on stdout, as JSON.

    Example: muster paper-broker --open-accounts --fault partial=0.3
    """
    if accounts is None and not open_accounts:
        raise typer.BadParameter("nobody could log in: give --accounts FILE or --open-accounts")
    try:
        faults = Faults.parse(fault or ())
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong), param_hint="--fault") from wrong
    serve(PaperSettings(host, port, seed, book, accounts, open_accounts, Decimal(str(cash)), faults))
