"""The settings of a node on a command line: a file in Kafka's .properties format, and single ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from duramen.cli.shared.output import pairs
from duramen.config import gateway_setting, parse_properties
from duramen.errors import ConfigError

_GATEWAY_PREFIX = "gateway."


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


def node_settings(file: str | None, settings: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """`split_settings` of what a command line gives: --set over --config."""
    text = read_properties(file)
    return split_settings({**(parse_properties(text) if text is not None else {}), **pairs("--set", settings)})


def split_settings(texts: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of a node, and those of the gateway that it runs (`gateway.*`).

    ConfigError for an unknown one of the gateway's, and for a gateway that is not told where to listen.
    """
    gateway = {name: text for name, text in texts.items() if name.startswith(_GATEWAY_PREFIX)}
    for name in gateway:
        gateway_setting(name)
    if gateway and "gateway.listener" not in gateway:
        raise ConfigError(
            f"{min(gateway)} is set, but this node runs no gateway; it does with gateway.listener=http://127.0.0.1:8082"
        )
    return {name: text for name, text in texts.items() if name not in gateway}, gateway
