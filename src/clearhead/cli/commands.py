"""Commands of other packages: functions that they list in the entry-point group `clearhead.commands`."""

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from clearhead.cli.failure import CommandError
from clearhead.registry import Registry

__all__ = ["COMMANDS", "Commands"]

LABORATORY = ("train", "attack", "reproduce", "verify", "demo")
"""The commands of the laboratory, a package of its own."""


def _expected(name: str, unit: Any) -> str:
    return "" if callable(unit) else "a function"


COMMANDS = Registry[Callable[..., object]]("clearhead.commands", "command", _expected)


class Commands(TyperGroup):
    """Clearhead's own commands, and those of other packages, which are imported when they are asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands that can be imported. Say on standard error which cannot."""
        loaded = COMMANDS.all()
        own = super().list_commands(ctx)
        taken = [
            f"the command {name} of {COMMANDS.source(name).package} is not used: clearhead has one of that name"
            for name in loaded.units
            if name in own
        ]
        for failure in (*loaded.failures, *taken):
            typer.echo(f"clearhead: {failure}", err=True)
        return [*own, *(name for name in loaded.units if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; None if there is none of that name. Raise InputError if it cannot be imported."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        if cmd_name not in COMMANDS.names():
            if cmd_name in LABORATORY:
                raise CommandError(
                    f"clearhead {cmd_name} is a command of Clearhead's laboratory; pip install clearhead-lab"
                )
            return None
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        single.command(cmd_name)(COMMANDS.get(cmd_name))
        return typer.main.get_command(single)
