"""When in a turn of the loop something runs that others should not feel (decision 0008)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol


class Agenda(Protocol):
    """What of a Clock it takes."""

    @property
    def call_soon(self) -> Callable[[Callable[[], None]], None]: ...

    @property
    def call_last(self) -> Callable[[Callable[[], None]], None]: ...


def after_others(agenda: Agenda, callback: Callable[[], None]) -> None:
    """Run behind all that this turn has been asked to do so far, and behind the readers which that wakes.

    Asked for at the end of a turn: in the next one, after a look at the sockets.
    """
    agenda.call_soon(partial(agenda.call_last, callback))
