"""How far a consumer is, whatever order its requests come in, and what the group does meanwhile."""

from __future__ import annotations

import pytest

from duramen.gateway.consumers.consumer_positions import UNKNOWN, ConsumerPositions
from duramen.gateway.edge.problem import ProblemError
from duramen.model import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def positions() -> ConsumerPositions:
    found = ConsumerPositions()
    found.add({A: 10, B: 20}, ())
    return found


def test_a_position_moves_when_an_answer_was_sent(positions: ConsumerPositions) -> None:
    started = positions.positions
    assert started == {A: 10, B: 20}
    positions.answered({A: 15}, started)
    assert list(positions.positions.items()) == [(B, 20), (A, 15)]
    positions.passed_over(B)
    assert list(positions.positions.items()) == [(A, 15), (B, 20)]


def test_what_was_sought_or_taken_away_meanwhile_does_not_move(positions: ConsumerPositions) -> None:
    started = positions.positions
    positions.seek({A: 3})
    positions.take_away({B})
    positions.answered({A: 15, B: 25}, started)
    assert positions.positions == {A: 3}
    positions.add({B: 22}, (B,))
    positions.answered({B: 25}, started)
    assert positions.positions == {A: 3, B: 22}
    assert positions.still(started) == []


def test_what_is_read_already_stays_where_it_is(positions: ConsumerPositions) -> None:
    positions.answered({A: 15}, positions.positions)
    assert positions.missing([A, B, C]) == [C]
    positions.add({C: 30}, ())
    positions.keep([A, C])
    assert positions.positions == {A: 15, C: 30}


def test_what_is_to_be_committed(positions: ConsumerPositions) -> None:
    positions.committed({A: 10, C: 1})
    assert positions.uncommitted == {B: 20}
    positions.answered({A: 11}, positions.positions)
    assert positions.uncommitted == {A: 11, B: 20}
    positions.committed(positions.uncommitted)
    assert positions.uncommitted == {}
    positions.seek({A: 3})
    assert positions.uncommitted == {A: 3}
    positions.keep([B])
    positions.add({A: 20}, [A])
    assert positions.uncommitted == {}


def test_no_position_is_none_to_commit(positions: ConsumerPositions) -> None:
    positions.keep(())
    positions.add({C: UNKNOWN}, ())
    assert positions.uncommitted == {}
    positions.seek({C: 5})
    assert positions.uncommitted == {C: 5}


def test_what_was_answered_and_is_another_ones_now_is_said_once(positions: ConsumerPositions) -> None:
    positions.answered({A: 11, B: 21}, positions.positions)
    positions.committed({B: 21})
    positions.take_away({A, B})
    assert not positions
    assert positions.take_unsaved() == [A]
    assert positions.take_unsaved() == []
    positions.add({A: 10}, ())
    positions.answered({A: 11}, positions.positions)
    positions.take_away({A})
    positions.add({A: 10}, [A])  # it will be answered again
    assert positions.take_unsaved() == []
    positions.move({A: 11}, positions.positions)  # over what is shown to nobody
    positions.take_away({A})
    assert positions.take_unsaved() == []


def test_all_that_a_seek_names_are_read_or_none_moves(positions: ConsumerPositions) -> None:
    with pytest.raises(ProblemError, match="t-2 is not assigned"):
        positions.seek({A: 1, C: 1})
    assert positions.positions == {A: 10, B: 20}
