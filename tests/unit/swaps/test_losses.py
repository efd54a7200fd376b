"""What librdkafka tells of offsets that are not there: also late, of a place that the reader has left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError
from tests.unit.swaps import test_group_reader as group

from duramen.swaps import GroupReader, group_reader

install = group.install
"""The fixture: readers are those of a node in memory."""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, install: Callable[[group.Node], group.Node]) -> list[list[Any]]:
    """Messages that librdkafka gives in its next answers; None among them: what it would have given."""
    coming: list[list[Any]] = []
    install(group.Node())
    node = group_reader.LibraryConsumer.node  # type: ignore[attr-defined]

    class Telling(group.FakeConsumer):
        def consume(self, count: int, timeout: float) -> list[Any]:
            given: list[Any] = []
            for each in coming.pop(0) if coming else [None]:
                given += super().consume(count, timeout) if each is None else [each]
            return given

    Telling.node = node
    monkeypatch.setattr(group_reader, "LibraryConsumer", Telling)
    return coming


def reads_on(reader: GroupReader, turns: int = 12) -> list[group.Record]:
    found: list[group.Record] = []
    for _ in range(turns):
        found += group.records(reader.consume(3, 0.1))
        reader.commit()
    return found


@pytest.mark.parametrize("code", [KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION])
@pytest.mark.parametrize("order", ["alone", "first", "last"])
def test_a_loss_that_went_with_the_topic_takes_nothing_of_the_one_that_was_made_anew(
    told: list[list[Any]], order: str, code: int
) -> None:
    """The reader had heard of the new one's id already, and gone to its first record: it went to the end from there."""
    node, said = group_reader.LibraryConsumer.node, list[str]()  # type: ignore[attr-defined]
    node.ids["late"] = bytes([1] * 16)
    node.put("late", 3, 0)
    reader = GroupReader("", "audit", "late", tell=said.append)
    assert len(reads_on(reader)) == 3
    node.make("late", 2)
    node.ids["late"] = bytes([2] * 16)
    node.commits = {}
    while not said:
        assert group.records(reader.consume(3, 0.1)) == []
    node.put("late", 2, 0)
    stale = group.Taken(("late", 0, 3), code)
    orders: dict[str, list[Any]] = {"alone": [stale], "first": [stale, None], "last": [None, stale]}
    told.append(orders[order])
    assert reads_on(reader) == [("late", 0, 0), ("late", 0, 1)]
    assert said == ["topic late was deleted and made anew; it is read from its first record"]
    reader.close()


def test_a_log_that_was_cut_off_is_read_from_there(told: list[list[Any]]) -> None:
    """Its end is in front of what was read, or has passed it again: then the loss says where other records begin."""
    node, said = group_reader.LibraryConsumer.node, list[str]()  # type: ignore[attr-defined]
    node.put("late", 3, 0)
    reader = GroupReader("", "audit", "late", tell=said.append)
    assert len(reads_on(reader)) == 3
    node.ends["late"][0] = 2
    told.append([group.Taken(("late", 0, 3), KafkaError._AUTO_OFFSET_RESET)])
    assert reads_on(reader) == []
    assert said == ["late-0: the log ends at offset 2, in front of 3, where it was read: it was cut off"]
    node.ends["late"][0] = 5
    assert reads_on(reader) == [("late", 0, 2), ("late", 0, 3), ("late", 0, 4)]
    told.append([group.Taken(("late", 0, 4), KafkaError._LOG_TRUNCATION)])
    assert reads_on(reader) == [("late", 0, 4)]
    reader.close()
