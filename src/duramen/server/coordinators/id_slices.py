"""Ids of a request, so many at a time as one turn of the loop may look for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

SLICE_CHARACTERS: Final = 20_000
"""Of ids that are looked for in one turn of the loop: a request brings up to `socket.request.max.bytes` of them."""

MOST_CHARACTERS: Final = 20_000_000
"""Of one request, which keeps them in memory until the last one."""

ID_CHARACTERS: Final = 100
"""What an id costs beside its characters, in characters."""


def are_too_many(ids: list[str]) -> bool:
    """Whether a request brings more of them than are kept for it."""
    return sum(map(len, ids)) + ID_CHARACTERS * len(ids) > MOST_CHARACTERS


def slices(ids: Iterable[str]) -> Iterator[list[str]]:
    """The ids in order, a turn's at a time."""
    some: list[str] = []
    left = SLICE_CHARACTERS
    for each in ids:
        some.append(each)
        left -= len(each) + ID_CHARACTERS
        if left <= 0:
            yield some
            some, left = [], SLICE_CHARACTERS
    if some:
        yield some
