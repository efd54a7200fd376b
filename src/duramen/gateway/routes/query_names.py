"""Which query parameters a route takes, and what becomes of a request with others. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.routes.route import RouteRow

_NAME_SHOWN_MAX: Final = 80
_GUESSED_MIN: Final = 4
"""Letters of a name from which on one that differs in a single place is taken for a misspelling of it."""


class QueryNames:
    """The query parameters of one route; one whose name ends with .NAME stands for all that begin so.

    Routes of ours refuse all others. /v1/stream/<path> may be asked by any client of Durable Streams, with parameters
    of its own: there only a name is refused that one edit makes a known one. Confluent's API and the routes of the
    process ignore what they do not know.
    """

    def __init__(self, row: RouteRow) -> None:
        given = [parameter.name for parameter in row.parameters if parameter.place == "query"]
        self._shown = ", ".join(given)
        self._names = frozenset(name for name in given if not name.endswith(".NAME"))
        self._prefixes = tuple(name.removesuffix("NAME") for name in given if name.endswith(".NAME"))
        self._refuses_others = row.refuses_parameters
        self._refuses_misspelt = row.is_durable_streams

    def check(self, names: Iterable[str]) -> None:
        """Problem 400 for the first one that is refused."""
        for name in names:
            if name in self._names or name.startswith(self._prefixes):
                continue
            meant = self._meant(name)
            if self._refuses_others or (self._refuses_misspelt and meant):
                raise self._unknown(name, meant)

    def _meant(self, name: str) -> str:
        """The known one that this is likely to be; "" where there is none."""
        beginning, dot, rest = name.partition(".")
        if dot and rest:
            likely = [known for known in self._prefixes if _is_near(beginning, known.removesuffix("."))]
            return f"{likely[0]}{rest}" if likely else ""
        return min((known for known in self._names if _is_near(name, known)), default="")

    def _unknown(self, name: str, meant: str) -> ProblemError:
        taken = f"there are {self._shown}" if self._shown else "none is taken here"
        guess = f"; is it {meant[:_NAME_SHOWN_MAX]}?" if meant else ""
        return bad_request(name[:_NAME_SHOWN_MAX], f"there is no such parameter; {taken}{guess}")


def _is_near(name: str, known: str) -> bool:
    """Whether a name is a known one in other letters, or with one letter more, less, changed, or swapped with the
    next."""
    name = name.lower()
    if name == known:
        return True
    if len(known) < _GUESSED_MIN or abs(len(name) - len(known)) > 1:
        return False
    at = next((n for n, (mine, theirs) in enumerate(zip(name, known, strict=False)) if mine != theirs), len(name))
    rest, known_rest = name[at:], known[at:]
    return (
        rest[1:] == known_rest
        or rest == known_rest[1:]
        or rest[1:] == known_rest[1:]
        or (rest[1::-1] == known_rest[:2] and rest[2:] == known_rest[2:])
    )
