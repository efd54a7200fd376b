"""Mistakes of a configuration, gathered: whoever mends a file would otherwise meet one a start."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from duramen.errors import ConfigError


class NotReadableError(ConfigError):
    """What was asked for stands in the file in a way that cannot be read, which is a mistake of its own."""


def mistakes_of(rules: Iterable[Callable[[], Any]]) -> list[ConfigError]:
    """What the rules raise, apart from what only follows from a value that cannot be read."""
    errors = []
    for rule in rules:
        try:
            rule()
        except NotReadableError:
            continue
        except ConfigError as error:
            errors.append(error)
    return errors


def raise_all(errors: list[ConfigError]) -> None:
    """All of them at once, a line each and none twice."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise ConfigError("\n".join(dict.fromkeys(line for error in errors for line in str(error).splitlines())))
