"""Finds the name that a misspelt one probably means, at the cost of a few look-ups: clients send thousands at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LONGEST: Final = 100
"""Characters of a name that is compared with the known ones."""

LIKE_ENOUGH: Final = 0.35
"""Share of common pieces below which a name is like none of them."""

PIECE: Final = 3


class Nearest:
    """The known names by their pieces of three characters; those that have most pieces in common are alike."""

    __slots__ = ("_having", "_pieces")

    def __init__(self, names: Iterable[str]) -> None:
        self._having: dict[str, list[str]] = {}
        self._pieces: dict[str, int] = {}
        """How many pieces each name has."""
        for name in names:
            pieces = _pieces(name)
            self._pieces[name] = len(pieces)
            for piece in pieces:
                self._having.setdefault(piece, []).append(name)

    def to(self, name: str) -> str | None:
        """The known name that is most like this one; None when none is."""
        if len(name) > LONGEST:
            return None
        pieces = _pieces(name.lower().replace("_", ".").removeprefix("kafka."))  # as an environment has them
        common: dict[str, int] = {}
        for piece in pieces:
            for known in self._having.get(piece, ()):
                common[known] = common.get(known, 0) + 1
        best, most = None, LIKE_ENOUGH
        for known, count in common.items():
            likeness = 2 * count / (len(pieces) + self._pieces[known])
            if likeness > most:
                best, most = known, likeness
        return best


def _pieces(name: str) -> set[str]:
    padded = f"\0\0{name}\0"
    return {padded[start : start + PIECE] for start in range(len(padded) - PIECE + 1)}
