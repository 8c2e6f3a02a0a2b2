"""`muster token`: a token of this machine's API, for its page, for curl, or for somebody with fewer
rights."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cli.session import DEFAULT_FOLDER, Code, Failure, Folder, path

_UNITS = {"s": 1, "m": 60, "h": 3600}
_LONGEST = timedelta(hours=12)


def token(
    role: Annotated[str, typer.Option(help="What its bearer may do: user, viewer or operator.")] = "operator",
    user: Annotated[str, typer.Option(help="Whose worker is its own; for role user, and only for it.")] = "",
    ttl: Annotated[str, typer.Option(help="How long it is good: 30s, 15m, 8h; 12h at most.")] = "1h",
    folder: Folder = DEFAULT_FOLDER,
) -> None:
    """Print a bearer token of the API that 'muster up' runs in DIR, signed with the key that lies there.

    Example: curl -H "Authorization: Bearer $(muster token --role viewer)" http://127.0.0.1:3001/v1/pool
    """
    try:
        typer.echo(_mint(role, user, ttl, folder))
    except Failure as failure:
        Console(stderr=True, highlight=False, soft_wrap=True).print(str(failure), style="red", markup=False)
        raise typer.Exit(failure.code) from failure


def _mint(role: str, user: str, ttl: str, folder: Path) -> str:
    from api.auth import Role
    from api.signing import Signer
    from muster.errors import Refused

    if role not in list(Role):
        raise Failure(Code.USAGE, f"--role {role}: one of {', '.join(Role)}")
    if bool(user) != (role == Role.USER):
        raise Failure(Code.USAGE, "--user goes with --role user, and only with it")
    if user:
        path(user)
    found = re.fullmatch(r"([0-9]{1,6})([smh])", ttl)
    life = timedelta(seconds=int(found[1]) * _UNITS[found[2]]) if found else timedelta()
    if not timedelta() < life <= _LONGEST:
        raise Failure(Code.USAGE, f"--ttl {ttl}: a number with s, m or h, up to 12h")
    try:
        return Signer.read(folder).token(Role(role), user or None, life)
    except Refused as refused:
        raise Failure(Code.FAILED, str(refused)) from refused
