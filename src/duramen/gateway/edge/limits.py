"""How much a gateway takes on at a time: bytes of writes without an answer, and readers that wait."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from duramen.gateway.edge.problem import SOON, ProblemError


class Allowance:
    """So much of something at a time. what: its name in the refusal."""

    def __init__(self, what: str, most: int) -> None:
        self._what = what
        self._most = most
        self.taken = 0

    def take(self, amount: int) -> None:
        """Problem 503 where there is not so much left; give it back with a negative amount."""
        if amount > 0 and self.taken + amount > self._most:
            raise ProblemError(
                503,
                "overloaded",
                f"{self.taken} {self._what} at a time are as many as this gateway takes; try again",
                SOON,
                retriable=True,
            )
        self.taken += amount

    def check(self) -> None:
        """Problem 503 where there is none left."""
        self.take(1)
        self.taken -= 1

    @contextmanager
    def one(self) -> Iterator[None]:
        """One of it, as long as the context lasts, whether there was one left or not."""
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1
