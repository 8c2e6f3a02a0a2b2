"""Commands that are imported when they are used, so that `muster --help` stays fast."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup


class LazyCommand(TyperCommand):
    """Stands in the list of commands for `module:attribute` until somebody runs it, or asks for its help.

    The attribute is a function, a Typer application that has a command of this name, or one that is itself
    the group of this name.
    """

    def __init__(self, name: str, target: str, help: str) -> None:
        super().__init__(name, help=help)
        self._target = target

    @property
    def there(self) -> bool:
        """A part that is not installed is not offered."""
        return find_spec(self._target.partition(":")[0]) is not None

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context is of the real command, which is therefore what runs."""
        return self.load().make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:
        module, _, attribute = self._target.partition(":")
        found = getattr(import_module(module), attribute)
        if not isinstance(found, typer.Typer):
            application = typer.Typer(add_completion=False)
            application.command(self.name)(found)
            return typer.main.get_command(application)
        command = typer.main.get_command(found)
        return getattr(command, "commands", {}).get(self.name, command)


def group_of(*commands: LazyCommand) -> type[TyperGroup]:
    """A group that consists of these, in this order."""

    class LazyGroup(TyperGroup):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            self.commands = {str(command.name): command for command in commands if command.there}

    return LazyGroup
