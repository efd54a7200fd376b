"""Reads and writes down all numbers for one request, a little in each turn of the loop: clients are served in between.

A hundred thousand committed offsets are as many lines, and each of them takes ten microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from itertools import islice
from time import monotonic
from typing import Any, Final, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from duramen.model import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

TURN_SECONDS: Final = 0.001
"""What a scrape takes of one turn, and what its last piece takes on top."""
PIECE_SAMPLES: Final = 100
"""Of one family, written down at once."""
FOLDED_TOPICS: Final = (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
"""The partitions of each share one row of every metric: there are 50 of them, where nobody may have another topic."""
FOLDED_PARTITION: Final = "all"

_T = TypeVar("_T")


def pieces_of(things: Iterable[_T]) -> Iterator[list[_T]]:
    """They in order, PIECE_SAMPLES at a time; an empty piece when there are none: a family has its heading even so."""
    left = iter(things)
    piece = list(islice(left, PIECE_SAMPLES))
    yield piece
    while piece := list(islice(left, PIECE_SAMPLES)):
        yield piece


def text_of(families: Iterable[Metric]) -> Iterator[bytes]:
    """Prometheus text. A family that follows one of its own name goes on with it, without another heading."""
    before = ""
    for family in families:
        text = generate_latest(_Only(family))
        yield text.split(b"\n", 2)[2] if family.name == before else text
        before = family.name


class _Only(CollectorRegistry):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        super().__init__(auto_describe=False)
        self._family = family

    def collect(self) -> Iterator[Metric]:
        yield self._family


class Scrape:
    """One request's; `answer` is the text in the end."""

    def __init__(self, pieces: Iterator[bytes], soon: Callable[[Callable[[], None]], None]) -> None:
        """soon: runs something in the loop's next turn."""
        self.answer: Future[bytes] = Future()
        self.turns = 0
        """It has had so many: who waits can tell a long scrape from a loop that stands still."""
        self._pieces = pieces
        self._soon = soon
        self._text: list[bytes] = []

    def go_on(self) -> None:
        """Take one turn, and ask for the next."""
        if self.answer.cancelled():
            return
        self.turns += 1
        until = monotonic() + TURN_SECONDS
        try:
            for piece in self._pieces:
                self._text.append(piece)
                if monotonic() >= until:
                    self._soon(self.go_on)
                    return
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            self._end(self.answer.set_exception, RuntimeError(str(error)))
            return
        self._end(self.answer.set_result, b"".join(self._text))

    def _end(self, tell: Callable[[Any], None], what: Any) -> None:
        if self.answer.set_running_or_notify_cancel():
            tell(what)
