"""Environments: they keep folders, output topics and sinks of one pipeline apart, for people and stages that share a
node."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from duramen.errors import ConfigError

VARIABLE = "DURAMEN_ENV"
_NAME = re.compile(r"(?!v\d+$)[a-z][a-z0-9_-]{0,31}")
"""It begins with a letter, for a sink's id ends with a number where there is no environment; and it is no version's
name as they are counted, for a version of an output topic ends with that."""
_commanded: ContextVar[str | None] = ContextVar("duramen_env", default=None)


@contextmanager
def commanded(env: str | None) -> Iterator[None]:
    """Pipelines that are declared meanwhile are in this environment, whatever they say; "" is none, None asks nothing.

    Names of topics depend on it, so it has to be known when a pipeline's file is read.
    """
    token = _commanded.set(env)
    try:
        yield
    finally:
        _commanded.reset(token)


def environment(declared: str | None) -> str | None:
    """That of the command, else the one declared, else DURAMEN_ENV; None for none. ConfigError for a wrong name."""
    asked = _commanded.get()
    found = next((each for each in (asked, declared, os.environ.get(VARIABLE)) if each is not None), "")
    if found and not _NAME.fullmatch(found):
        raise ConfigError(
            f"{found!r}: an environment's name is made of at most 32 lower-case letters, digits, dashes and "
            "underscores, begins with a letter, and is not v and a number"
        )
    return found or None
