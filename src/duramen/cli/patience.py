"""Waits for a node that is away for now, and knows when a group has gone on without one of its members."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from duramen.cli.output import note
from duramen.errors import DeadlineError, NetworkError
from duramen.swaps.group_reader import GROUP_WENT_ON

PAUSE_SECONDS: Final = 0.2
"""Between two attempts."""
TELL_SECONDS: Final = 10.0
"""After so many it is told what is waited for, once."""

_AWAY: Final = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._WAIT_COORD,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)

_T = TypeVar("_T")


class Patience:
    """How long a member of a group asks again: as long as it takes, or so many seconds a time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def ask(self, what: Callable[[], _T]) -> _T:
        """Its answer. `what` has to be one that can be asked again after an error."""
        began = time.monotonic()
        told = False
        while True:
            try:
                return what()
            except (KafkaException, NetworkError, DeadlineError) as error:
                passes = not isinstance(error, KafkaException) or error.args[0].code() in _AWAY
                waited = time.monotonic() - began
                if not passes or waited >= self._seconds:
                    raise
                if waited >= TELL_SECONDS and not told:
                    told = True
                    note(f"waiting for the node: {error.args[0].str() if isinstance(error, KafkaException) else error}")
            time.sleep(PAUSE_SECONDS)

    def commit(self, what: Callable[[], object]) -> None:
        """As `ask`. Where the group has gone on without this member, others read again what it has read."""
        try:
            self.ask(what)
        except KafkaException as error:
            if error.args[0].code() not in GROUP_WENT_ON:
                raise
