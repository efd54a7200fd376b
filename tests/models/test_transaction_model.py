"""The model of transactions itself; what it explores is in `test_models.py`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.models.explorer import explore
from tests.models.transaction import Bounds, State, Token, Transactions


def committed_twice(state: State) -> bool:
    return {(Token(0, 0), True), (Token(0, 1), True)} <= state.ended and bool(state.known.unmarked is None)


def committed_by_both(state: State) -> bool:
    return {client for (client, _), commit in state.ended if commit} == {0, 1}


def another_id(state: State) -> bool:
    return state.known.transaction is not None and state.known.transaction.producer == (2, 1)


def spread(state: State) -> bool:
    return any(commit and sum(token in entry.seen for place in state.places for entry in place) == 2
               for token, commit in state.ended)  # fmt: skip


@pytest.mark.parametrize(
    ("bounds", "is_there"),
    [
        (Bounds(places=1), committed_twice),
        (Bounds(generations=(0, 0), places=1), committed_twice),
        (Bounds(places=1), committed_by_both),
        (Bounds(generations=(0, 0), places=1), committed_by_both),
        (Bounds(generations=(2, 0), places=1), committed_by_both),
        (Bounds(places=1, first_epoch=32766), another_id),
        (Bounds(transactions=1), spread),
    ],
)
def test_what_must_not_be_is_not_absent_for_want_of_anything_happening(
    bounds: Bounds, is_there: Callable[[State], bool]
) -> None:
    model = Transactions(bounds)
    found = explore(model.first(), model.steps, lambda state: "there" if is_there(state) else None)
    assert found.violation == "there"


def test_the_first_generation_cannot_endure_what_comes_late() -> None:
    """KAFKA-17754: a batch that a time-out of the network left behind lands in the next transaction."""
    model = Transactions(Bounds(generations=(0, 0), places=1))
    model.is_late = True
    found = explore(model.first(), model.steps, model.violation)
    assert found.violation is not None
