"""`muster sim study`: a day of very many users on the fast model. Data on stdout, words on stderr."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


def study(
    users: Annotated[int, typer.Option(min=1, help="Users of the whole fleet.")] = 1_000_000,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same figures.")] = 7,
    plots: Annotated[Path | None, typer.Option(help="Write the pictures (SVG and PNG) here.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable fields.")] = False,
) -> None:
    """How many cells a day of users needs, which quota binds, and what each pool policy costs.

    Example: muster sim study --users 1000000 --seed 7
    """
    # Imported here: numpy and matplotlib cost a second that no other command should pay.
    from sim.study import markdown, report

    made = report.study(users, seed)
    if plots is not None:
        from sim.study.plots import draw

        cells = made.study.advised or report.CELLS[-1]
        for path in draw(made, cells, plots):
            typer.echo(str(path), err=True)
    typer.echo(json.dumps(made.study.to_dict()) if as_json else markdown.text(made.study))
