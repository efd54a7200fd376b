"""Which models are explored, within which bounds, and what takes each of their rules out."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from tests.models.explorer import Exploration, explore
from tests.models.quorum import Bounds, Quorum


class Search(NamedTuple):
    """One model within bounds; without: the rule that does not hold."""

    name: str
    bounds: Bounds
    without: str = ""


def run(search: Search) -> Exploration[Any]:
    model = Quorum(search.bounds, search.without)
    return explore(model.first(), model.steps, model.violation, model.canonical)


SMALL: Final = [
    Search("quorum", Bounds(epochs=2, entries=1)),
    Search("quorum", Bounds(epochs=2, entries=0, cuts=1)),
]
"""What every run of the tests explores."""

LARGE: Final = [
    Search("quorum", Bounds(epochs=3, entries=1)),
    Search("quorum", Bounds(epochs=4, entries=0)),
    Search("quorum", Bounds(epochs=3, entries=0, cuts=1)),
    Search("quorum", Bounds(epochs=2, entries=2, cuts=1)),
    Search("quorum", Bounds(epochs=2, entries=1, late=1)),
]

TAKEN_OUT: Final = [
    Search("quorum", Bounds(epochs=1, cuts=1), "vote-synced"),
    Search("quorum", Bounds(epochs=1), "one-vote"),
    Search("quorum", Bounds(epochs=2), "longest-log"),
    Search("quorum", Bounds(epochs=2, cuts=1), "durable-only"),
    Search("quorum", Bounds(epochs=4), "own-epoch"),
    Search("quorum", Bounds(epochs=2, entries=1, cuts=1), "no-resume"),
    Search("quorum", Bounds(epochs=1, wipes=1), "same-disk"),
    Search("quorum", Bounds(epochs=2, late=1), "answers-in-place"),
    Search("quorum", Bounds(epochs=3), "histories"),
]
"""Each within the least bounds that show what it is for; with all rules these hold."""

MODELS: Final = [*LARGE, *TAKEN_OUT]
