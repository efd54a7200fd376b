"""A group of commands whose modules are imported when they are called."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from duramen.errors import DuramenError
from duramen.version import INSTALL_SPARK, SPARK_PACKAGES


class MissingExtraError(DuramenError):
    """A package of the extra is not installed."""


class LazyGroup(click.Group):
    """commands_at: name → module and summary; the module holds the command under its name, `-` as `_`, `_command`."""

    def __init__(self, *args: Any, commands_at: Mapping[str, tuple[str, str]], **rest: Any) -> None:
        super().__init__(*args, **rest)
        self._at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which they are declared."""
        return list(self._at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the command: its options and its help, which need no package of the extra."""
        if cmd_name not in self._at:
            return None
        module = importlib.import_module(self._at[cmd_name][0])
        found: click.Command = getattr(module, f"{cmd_name.replace('-', '_')}_command")
        return found

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command, which imports what it needs. MissingExtraError names a package that is not there."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = (error.name or "").split(".")[0]
            if package not in SPARK_PACKAGES:
                raise
            raise MissingExtraError(f"{package} is not installed; {INSTALL_SPARK}") from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list, from the declarations alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in self._at.items()])
