"""Waits for a node that is away for now, and knows when a group has gone on without one of its members."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from duramen.cli.shared.output import note
from duramen.errors import DeadlineError, NetworkError
from duramen.swaps.group_commits import PendingCommitsError
from duramen.swaps.group_reader import GROUP_WENT_ON

PAUSE_SECONDS: Final = 0.2
"""Between two attempts."""
TELL_SECONDS: Final = 10.0
"""After so many it is told what is waited for."""

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

_SILENT: Final = ("the node", "it does not answer")

_T = TypeVar("_T")


class Patience:
    """How long a reader asks again: as long as it takes, or so many seconds a time.

    What is waited for is told once, until there is an answer again; also while a call is still trying by itself.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._told = False
        self._whom, self._why = _SILENT

    def ask(self, what: Callable[[], _T]) -> _T:
        """Its answer. `what` has to be one that can be asked again after an error."""
        began = time.monotonic()
        with self.telling():
            while True:
                try:
                    return what()
                except (KafkaException, NetworkError, DeadlineError, PendingCommitsError) as error:
                    passes = not isinstance(error, KafkaException) or error.args[0].code() in _AWAY
                    waited = time.monotonic() - began
                    if not passes or waited >= self.seconds:
                        raise
                    self._whom = "the group" if isinstance(error, PendingCommitsError) else "the node"
                    self._why = error.args[0].str() if isinstance(error, KafkaException) else str(error)
                    if waited >= TELL_SECONDS:
                        self.tell(self._why)
                time.sleep(PAUSE_SECONDS)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Say what is waited for where this takes long."""
        timer = threading.Timer(TELL_SECONDS, lambda: self.tell(self._why))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
        self._told = False
        self._whom, self._why = _SILENT

    def tell(self, why: str) -> None:
        """What is waited for; said once."""
        if not self._told:
            self._told = True
            note(f"waiting for {self._whom}: {why}")

    def commit(self, what: Callable[[], object]) -> None:
        """As `ask`. Where the group has gone on without this member, others read again what it has read."""
        try:
            self.ask(what)
        except KafkaException as error:
            if error.args[0].code() not in GROUP_WENT_ON:
                raise
