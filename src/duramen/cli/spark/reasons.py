"""An error of Spark's as people read it: the reason in one line, and what Spark wraps around it for who asks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from duramen.cli.shared.output import note

_Command = TypeVar("_Command", bound=Callable[..., Any])


def in_one_line(command: _Command) -> _Command:
    """Adds --verbose. What Spark says of an error becomes its reason, a QueryFailedError; --verbose shows all of it."""

    @functools.wraps(command)
    def with_reason(*args: Any, verbose: bool, **rest: Any) -> Any:
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
        from pyspark.errors import PySparkException

        from duramen.pipelines.run.failures import QueryFailedError, reason, told

        try:
            return command(*args, **rest)
        except QueryFailedError as error:
            if verbose and error.__cause__ is not None:
                note(told(error.__cause__))
            raise
        except (PySparkException, Py4JError) as failure:
            if verbose:
                note(told(failure))
            raise QueryFailedError(reason(failure)) from failure

    option = click.option("-v", "--verbose", is_flag=True, help="Show all that Spark says of an error, too.")
    return option(with_reason)  # type: ignore[return-value]
