"""Running coroutines that wait for nothing: those upon a back end that blocks."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from duramen.errors import BugError

_T = TypeVar("_T")


def run(work: Coroutine[Any, Any, _T]) -> _T:
    """What it returns or raises. BugError for one that waits for a loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: _T = end.value
        return result
    work.close()
    raise BugError("a call of a back end that blocks waits for a loop")
