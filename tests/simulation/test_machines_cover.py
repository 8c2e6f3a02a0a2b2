"""No Lua file of the product without a state machine.

Each machine names the scripts it stands for in `SCRIPTS`, and `machines.run` fails when one of them was in no
history. Here the names are held against the files.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from tests.simulation.machines import ROOT, named

#: Where code of the product may be. A prelude is put before every script of its folder, and runs with each.
PACKAGES = ("api", "cli", "lambdas", "local", "muster", "sim", "supervisor", "worker")


def covered() -> dict[str, list[str]]:
    """Each script, and the machines that stand for it."""
    found: dict[str, list[str]] = {}
    for module in sorted(Path(__file__).parent.glob("test_machines_*.py")):
        for script in getattr(import_module(f"tests.simulation.{module.stem}"), "SCRIPTS", ()):
            found.setdefault(script, []).append(module.stem)
    return found


def test_every_lua_file_of_the_product_is_run_by_a_state_machine() -> None:
    files = {named(path) for package in PACKAGES for path in (ROOT / package).rglob("*.lua")}
    scripts = {name for name in files if not name.endswith("/_prelude")}
    assert len(scripts) > 40
    assert scripts - covered().keys() == set(), "these need a machine"
    assert covered().keys() - scripts == set(), "these machines stand for a file that is gone"


def test_every_prelude_has_scripts_that_run_it() -> None:
    for package in PACKAGES:
        for prelude in (ROOT / package).rglob("_prelude.lua"):
            assert any((ROOT / script).parent == prelude.parent for script in covered()), prelude
