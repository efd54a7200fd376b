"""The settings of a node on a command line: a file in Kafka's .properties format, and single ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from duramen.errors import ConfigError


def config_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """--config as `file`, --set as `settings`."""
    for option in (
        click.option(
            "-s", "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override one setting; repeatable."
        ),
        click.option(
            "-c",
            "--config",
            "file",
            type=click.Path(exists=True, dir_okay=False),
            help="Settings in Kafka's .properties format.",
        ),
    ):
        command = option(command)
    return command


def read_properties(file: str | None) -> str | None:
    """The file's text. ConfigError where it cannot be read."""
    if file is None:
        return None
    try:
        with open(file, encoding="utf-8-sig") as opened:
            return opened.read()
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text; is it a .properties file?") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
