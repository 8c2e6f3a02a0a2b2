"""Write the reference pages that come from the code. `tests/unit/test_reference.py` fails when they drift.

python docs/generate.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from fastapi.routing import APIRoute

from api import access
from api.routes import bulk, events, fleet, health, jobs, me, timeline, workers
from api.routes import orders as order_routes
from cli.main import COMMANDS
from lambdas import telemetry
from muster import commands, keys, orders, settings
from muster.claims import Claim
from muster.commands import Command
from muster.messages import Rule
from muster.orders import FillCheck

PAGES = Path(__file__).parent / "reference"
#: Options that every command has which talks to the API; the page says so once.
_SHARED_OPTIONS = {"api_url", "token_file", "folder", "as_json"}


def settings_page() -> str:
    """Every setting with its default and the comment above it."""
    rows = []
    notes = _comments(settings)
    for name, spec in settings.Settings.__dataclass_fields__.items():
        default = f"`{spec.default}`" if spec.default != "" else "empty"
        rows.append(f"| `MUSTER_{name.upper()}` | {default} | {notes.get(name, '')} |")
    return (
        "# Settings\n\nWhat the functions, the workers and the API read from their environment, and nothing else. A "
        "value of the wrong kind is\nrefused with the variable's name. Generated from `muster/settings.py`.\n\n"
        "| variable | default | meaning |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


def keys_page() -> str:
    """Every key with its docstring, in the order of the module."""
    rows = []
    for node in ast.parse(inspect.getsource(keys)).body:
        if not isinstance(node, ast.FunctionDef) or node.name in ("bucket_of", "user_keys", "pool_keys"):
            continue
        function = getattr(keys, node.name)
        words = [f"<{argument.arg}>" for argument in node.args.args]
        shown = function(*(0 if node.name == "index" else word for word in words))
        rows.append(f"| `{shown}` | {' '.join((function.__doc__ or '').split())} |")
    return (
        "# Keys\n\nEverything in Valkey. `{...}` is a literal hash tag: one user's keys share a slot. Generated from "
        "`muster/keys.py`.\n\n| key | content |\n| --- | --- |\n" + "\n".join(rows) + "\n"
    )


def metrics_page() -> str:
    """Every metric name."""
    names = "\n".join(f"* `{metric.value}`" for metric in telemetry.Metric)
    return (
        f"# Metrics\n\nNamespace `{telemetry.NAMESPACE}`, written as EMF by the functions and, for `StartLatency` "
        "(dimension `via`:\nwarm, cold or repair), by the workers. `FillChecks` has also `outcome`: what a look found, and `differs` for an\n"
        "order of which worker and broker said different things (`service`: order_tasks or worker, whoever came second).\n"
        "A user id is never a dimension. Generated from "
        f"`lambdas/telemetry.py`.\n\n{names}\n"
    )


def messages_page() -> str:
    """Every message that travels on a queue, field by field."""
    parts = [
        "# Messages\n\nWhat travels on the queues. A field that is not listed is refused, and the message parked with that "
        "reason. Generated from\n`muster/commands.py`, `muster/claims.py` and `muster/orders.py`.",
        f"## worker-control.fifo: a command\n\nMessage group: the user id. {_words(Command)}\n\n{_fields(Command, commands.RULES)}",
        f"## order-tasks.fifo: a fill check\n\nMessage group: the order id. {_words(FillCheck)}\n\n{_fields(FillCheck, orders.RULES)}",
        f"## pool-claim: a claim\n\n{_words(Claim)} Sent by worker_control only; over Valkey it is the same text in a "
        "list.\n\n| field | kind |\n| --- | --- |\n"
        + "\n".join(f"| `{field.name}` | {field.type} |" for field in dataclasses.fields(Claim)),
    ]
    return "\n\n".join(parts) + "\n"


def _words(thing: Any) -> str:
    return " ".join((thing.__doc__ or "").split())


def _fields(message: type, rules: Mapping[str, Rule]) -> str:
    rows = []
    for field in dataclasses.fields(message):
        need = "yes" if field.default is dataclasses.MISSING else f"no, `{json.dumps(field.default)}`"
        rows.append(f"| `{field.name}` | {rules[field.name].described} | {need} |")
    return "| field | must be | required, else default |\n| --- | --- | --- |\n" + "\n".join(rows)


#: Guard of a route -> who comes in, reading and changing.
_WHO = {
    access.of_the_fleet: ("operator, viewer", "operator"),
    access.of_one_user: ("operator, viewer, that user", "operator, that user"),
    access.of_anybody: ("every good token", ""),
    access.of_nobody: ("everybody, without a token", ""),
}


def routes_part() -> str:
    """Every route with who may call it. No router asks its source for anything before a request comes."""
    nothing: Any = SimpleNamespace(url="memory://")
    parts = (workers, timeline, bulk, fleet, order_routes, jobs, events, me, health)
    rows = []
    for route in (
        route for part in parts for route in part.router(nothing).routes if isinstance(route, APIRoute)
    ):
        guard = next(g for g in _WHO if any(d.call is g for d in route.dependant.dependencies))
        for method in sorted(route.methods - {"HEAD"}):
            who = _WHO[guard][method not in access.READS]
            asked = ", ".join(f"`{field.alias}`" for field in route.dependant.query_params)
            rows.append(f"| `{method} {route.path}` | {route.summary or ''} | {asked} | {who} |")
    return "| request | what it is | query | who |\n| --- | --- | --- | --- |\n" + "\n".join(rows)


def commands_part() -> str:
    """Every command with its own options, in the order of `muster --help`."""
    return "\n\n".join(
        part for command in COMMANDS for part in _command_parts(str(command.name), command.load())
    )


def _command_parts(name: str, command: Any) -> Iterator[str]:
    text = [f"### muster {name}\n"]
    paragraphs = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    examples = [part.removeprefix("Example: ") for part in paragraphs if part.startswith("Example: ")]
    text += [part for part in paragraphs if part and not part.startswith("Example: ")]
    text += [f"\nExample: `{example}`" for example in examples]
    own = [
        p for p in command.params if p.name not in _SHARED_OPTIONS | {"install_completion", "show_completion"}
    ]
    if own:
        text.append("\n| argument or option | default | meaning |\n| --- | --- | --- |")
        text += [
            f"| {_parameter(parameter)} | {_default(parameter)} | {_help(parameter)} |" for parameter in own
        ]
    yield "\n".join(text)
    for sub, below in getattr(command, "commands", {}).items():
        yield from _command_parts(f"{name} {sub}", below)


def _parameter(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name).strip('[]').upper()}{'...' if parameter.nargs == -1 else ''}`"
    return ", ".join(f"`{word}`" for word in [*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    if parameter.param_type_name == "argument" and parameter.required:
        return "required"
    value = parameter.default() if callable(parameter.default) else parameter.default
    shown = getattr(value, "value", value)
    return "" if shown in (None, "", False, ()) else f"`{shown}`"


def _help(parameter: Any) -> str:
    return " ".join((getattr(parameter, "help", "") or "").split()).replace("|", "\\|")


def _with_part(page: str, name: str, text: str) -> str:
    """A hand-written page with its generated part replaced."""
    path = PAGES / page
    begin, end = f"<!-- begin {name}: generated -->", f"<!-- end {name} -->"
    found = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    written = path.read_text(encoding="utf-8")
    assert found.search(written), f"{page} has no place for {name}"
    return found.sub(lambda _: f"{begin}\n\n{text}\n\n{end}", written)


def _comments(module: ModuleType) -> dict[str, str]:
    """Field name -> the `#:` lines right above it."""
    notes: dict[str, str] = {}
    waiting: list[str] = []
    for line in inspect.getsource(module).splitlines():
        words = line.strip()
        if words.startswith("#: "):
            waiting.append(words[3:])
            continue
        name = words.split(":", 1)[0]
        if waiting and name.isidentifier():
            notes[name] = " ".join(waiting)
        waiting = []
    return notes


def pages() -> dict[str, str]:
    return {
        "settings.md": settings_page(),
        "keys.md": keys_page(),
        "metrics.md": metrics_page(),
        "messages.md": messages_page(),
        "api.md": _with_part("api.md", "routes", routes_part()),
        "cli.md": _with_part("cli.md", "commands", commands_part()),
    }


if __name__ == "__main__":
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")
