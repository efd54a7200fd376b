"""How far a consumer is, whatever order its requests come in."""

from __future__ import annotations

import pytest

from duramen.gateway.consumers.consumer_positions import UNKNOWN, ConsumerPositions
from duramen.gateway.edge.problem import ProblemError
from duramen.model import TopicPartition

A, B, C = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def positions() -> ConsumerPositions:
    found = ConsumerPositions()
    found.replace({A: 10, B: 20})
    return found


def test_a_position_moves_when_an_answer_was_sent(positions: ConsumerPositions) -> None:
    assert positions.positions == {A: 10, B: 20}
    positions.answered({A: 15})
    assert list(positions.positions.items()) == [(B, 20), (A, 15)]
    positions.passed_over(B)
    assert list(positions.positions.items()) == [(A, 15), (B, 20)]


def test_what_is_read_already_stays_where_it_is(positions: ConsumerPositions) -> None:
    positions.answered({A: 15})
    positions.replace({A: 0, C: 30})
    assert positions.positions == {A: 15, C: 30}
    assert positions.missing([A, B, C]) == [B]
    positions.answered({B: 99})
    assert B not in positions.partitions


def test_what_is_to_be_committed(positions: ConsumerPositions) -> None:
    positions.committed({A: 10, C: 1})
    assert positions.uncommitted == {B: 20}
    positions.answered({A: 11})
    assert positions.uncommitted == {A: 11, B: 20}
    positions.committed(positions.uncommitted)
    assert positions.uncommitted == {}
    positions.seek({A: 3})
    assert positions.uncommitted == {A: 3}
    positions.replace({B: 0})
    positions.replace({A: 11, B: 0})
    assert positions.uncommitted == {A: 11}


def test_no_position_is_none_to_commit(positions: ConsumerPositions) -> None:
    positions.replace({C: UNKNOWN})
    assert positions.uncommitted == {}
    positions.seek({C: 5})
    assert positions.uncommitted == {C: 5}


def test_all_that_a_seek_names_are_read_or_none_moves(positions: ConsumerPositions) -> None:
    with pytest.raises(ProblemError, match="t-2 is not assigned"):
        positions.seek({A: 1, C: 1})
    assert positions.positions == {A: 10, B: 20}
