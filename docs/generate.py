"""Write the reference pages that come from the code. `tests/unit/test_reference.py` fails when they drift.

python docs/generate.py
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from types import ModuleType

from lambdas import telemetry
from muster import keys, settings

PAGES = Path(__file__).parent / "reference"


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
        "(dimension `via`:\nwarm, cold or repair), by the workers. A user id is never a dimension. Generated from "
        f"`lambdas/telemetry.py`.\n\n{names}\n"
    )


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
    return {"settings.md": settings_page(), "keys.md": keys_page(), "metrics.md": metrics_page()}


if __name__ == "__main__":
    for name, text in pages().items():
        (PAGES / name).write_text(text, encoding="utf-8")
