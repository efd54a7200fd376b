"""The table of states, against Kafka's, and the diagram that is drawn from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen.errors import BugError
from duramen.machines.transaction.transitions import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    TRANSITIONS,
    TransactionEvent,
    TransactionState,
    diagram,
    state_behind,
)

PAGE = Path(__file__).parents[4] / "docs" / "internals" / "transactions.md"

BEFORE = {
    EMPTY: {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
    ONGOING: {ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
    PREPARE_COMMIT: {ONGOING},
    PREPARE_ABORT: {ONGOING, EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
    COMPLETE_COMMIT: {PREPARE_COMMIT},
    COMPLETE_ABORT: {PREPARE_ABORT},
    None: {EMPTY, COMPLETE_COMMIT, COMPLETE_ABORT},
}
"""Kafka's VALID_PREVIOUS_STATES; None is its Dead."""


def test_what_may_follow_what_is_what_kafka_allows() -> None:
    found: dict[TransactionState | None, set[TransactionState]] = {}
    for state, row in TRANSITIONS.items():
        for after in row.values():
            found.setdefault(after, set()).add(state)
    assert found == BEFORE
    assert set(TRANSITIONS) == set(TransactionState)


def test_what_the_table_has_not_is_a_bug() -> None:
    assert state_behind(ONGOING, TransactionEvent.FENCED) is PREPARE_ABORT
    with pytest.raises(BugError, match="PrepareCommit cannot see"):
        state_behind(PREPARE_COMMIT, TransactionEvent.ADDED)
    with pytest.raises(BugError):
        state_behind(EMPTY, TransactionEvent.EXPIRED)


def test_the_page_shows_the_diagram_of_the_table() -> None:
    assert f"```mermaid\n{diagram()}```\n" in PAGE.read_text()


def test_states_have_kafkas_names_and_numbers() -> None:
    assert [(state.value, state.title) for state in TransactionState] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
    ]
