"""What every command that talks to the API shares: where it is, how errors end, how answers are shown."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import httpx

DEFAULT_FOLDER = Path(".muster")
_PIPE_WIDTH = 240
_TIMEOUT_S = 30.0


_USER_ID = re.compile(r"[A-Za-z0-9._@:-]{1,128}")


class Code(IntEnum):
    """How a command ends."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNREACHABLE = 5


class Failure(Exception):
    """The command ends with this code; the text says what to do next."""

    def __init__(self, code: Code, text: str) -> None:
        super().__init__(text)
        self.code = code


_BY_STATUS = {
    401: Code.FAILED,
    403: Code.FAILED,
    404: Code.NOT_FOUND,
    409: Code.CONFLICT,
    413: Code.USAGE,
    422: Code.USAGE,
    503: Code.UNREACHABLE,
}

Url = Annotated[
    str, typer.Option("--api-url", envvar="MUSTER_API_URL", help="The API; by default of DIR/endpoints.json.")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="MUSTER_TOKEN_FILE",
        help="File with a bearer token; else MUSTER_TOKEN; else one is minted with the key in DIR.",
    ),
]
Folder = Annotated[Path, typer.Option("--dir", envvar="MUSTER_DIR", help="The folder 'muster up' runs in.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable fields.")]


@dataclass
class Cli:
    """One run of a command: data goes to `out`, words to `words`."""

    api_url: str
    token: str
    folder: Path
    as_json: bool

    @cached_property
    def words(self) -> Console:
        return Console(stderr=True, highlight=False, soft_wrap=True)

    @cached_property
    def endpoints(self) -> dict[str, Any]:
        """What `muster up` wrote down; empty if nothing is up in this folder."""
        path = self.folder / "endpoints.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as broken:
            raise Failure(Code.FAILED, f"{path} is damaged ({broken}); restart 'muster up'") from broken
        return found

    @property
    def url(self) -> str:
        if url := self.api_url or str(self.endpoints.get("api", "")):
            return url.rstrip("/")
        raise Failure(
            Code.UNREACHABLE,
            f"no API known: {self.folder / 'endpoints.json'} is not there. Start one with 'muster up', "
            "or name one with --api-url and --token-file",
        )

    @cached_property
    def http(self) -> httpx.Client:
        import httpx

        return httpx.Client(base_url=self.url, auth=self._auth(), timeout=_TIMEOUT_S)

    def _auth(self) -> httpx.Auth:
        """The token somebody gave, else always a young one of the folder's own key."""
        import httpx

        from api.signing import GivenAuth, OperatorAuth
        from muster.errors import Refused

        if self.token:
            return GivenAuth(self.token)
        # The folder's key is for its own API only, never for an address somebody has typed.
        if self.endpoints.get("api") != self.url:
            return httpx.Auth()
        try:
            return OperatorAuth(self.folder)
        except Refused as refused:
            raise Failure(Code.FAILED, str(refused)) from refused

    def call(self, method: str, path: str, **options: Any) -> Any:
        """One request; its JSON answer. Every other answer ends the command with its code."""
        import httpx

        try:
            answer = self.http.request(method, path, **options)
        except httpx.TransportError as away:
            raise Failure(
                Code.UNREACHABLE,
                f"{self.url} does not answer ({away or type(away).__name__}). "
                "Is it running? Start it with 'muster up'; 'muster doctor' finds what is wrong",
            ) from away
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as wrong:
            raise Failure(Code.USAGE, f"--api-url {self.url!r} is no address ({wrong})") from wrong
        if answer.is_success:
            return answer.json()
        raise Failure(_BY_STATUS.get(answer.status_code, Code.FAILED), _reason(answer))

    def show(self, data: Any, *rendered: Any) -> None:
        """The answer: as JSON, or as a person wants to see it."""
        if self.as_json:
            typer.echo(json.dumps(data))
            return
        out = Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        for part in rendered:
            out.print(part, markup=False)


def _reason(answer: httpx.Response) -> str:
    try:
        detail = str(answer.json()["detail"])
    except (ValueError, KeyError, TypeError):
        detail = f"{answer.status_code} {answer.reason_phrase}; is this address Muster's API?"
    if answer.status_code == 401:
        return f"{detail} (--token-file, or MUSTER_TOKEN; of this machine: 'muster token')"
    return detail


def _given_token(file: Path | None) -> str:
    """Never on the command line: everybody on a machine can read those."""
    if file is None:
        return os.environ.get("MUSTER_TOKEN", "")
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as missing:
        raise Failure(Code.USAGE, f"--token-file {file}: {missing}") from missing


def path(user: str) -> str:
    """The address of one user's worker. A user id that no server takes is refused here, with the rule."""
    if not _USER_ID.fullmatch(user) or not user.strip("."):
        raise Failure(
            Code.USAGE, f"{user!r} is no user id: 1 to 128 of A-Z a-z 0-9 . _ @ : -, and not only dots"
        )
    return f"/v1/workers/{quote(user, safe='')}"


def table(*columns: str) -> Table:
    """A table without lines, which reads well and cuts well."""
    made = Table(box=None, pad_edge=False, header_style="bold", show_header=any(columns))
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def add(rows: Table, *cells: str | Text) -> None:
    """One row. Its words are shown as they are: a reason with brackets in it is no markup."""
    rows.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))


def command(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that all of them have, a `Cli` as its first argument, and exit codes."""

    @wraps(run)
    def with_options(
        *, api_url: str, token_file: Path | None, folder: Path, as_json: bool, **own: Any
    ) -> None:
        cli = Cli(api_url, "", folder, as_json)
        try:
            cli.token = _given_token(token_file)
            run(cli, **own)
        except Failure as failure:
            cli.words.print(str(failure), style="red", markup=False)
            raise typer.Exit(failure.code) from failure
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        except BrokenPipeError:
            # The reader has seen enough; Python must not complain about it at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    _, *own = inspect.signature(run, eval_str=True).parameters.values()
    shared = [
        ("api_url", Url, ""),
        ("token_file", TokenFile, None),
        ("folder", Folder, DEFAULT_FOLDER),
        ("as_json", Json, False),
    ]
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [parameter.replace(kind=kind) for parameter in own]
    own += [inspect.Parameter(name, kind, default=value, annotation=type_) for name, type_, value in shared]
    with_options.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
    del with_options.__wrapped__
    return with_options
