"""`duramen consume` behind a loss: what librdkafka still tells of where it was before takes no records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from tests.unit.swaps.test_group_reader import FakeCluster, Node, Taken

from duramen.cli.shared import message_source
from duramen.cli.shared.message_source import Ends, TopicNameReader


class Line:
    """librdkafka's consumer: gives these answers in turn, and notes where it is told to go on."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = list(answers)
        self.went: list[list[tuple[int, int]]] = []

    def consume(self, _count: int, _timeout: float) -> list[Any]:
        return self.answers.pop(0)

    def incremental_unassign(self, _places: list[TopicPartition]) -> None:
        pass

    def incremental_assign(self, places: list[TopicPartition]) -> None:
        self.went.append(sorted((place.partition, place.offset) for place in places))


def test_a_late_loss_of_a_topic_that_was_made_anew_skips_none_of_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its other partition, and of the same once more: they went to the new topic's end."""
    node, said = Node(), list[str]()
    node.ids["late"] = bytes([1] * 16)
    node.put("late", 3, 3)
    monkeypatch.setattr(message_source, "Client", lambda *_, **__: type("Client", (FakeCluster,), {"node": node})(""))
    monkeypatch.setattr(message_source, "note", said.append)
    line, ends, patience = Line(), Ends(), SimpleNamespace(ask=lambda work: work())
    ends.assign([TopicPartition("late", 0), TopicPartition("late", 1)])
    at: Any = SimpleNamespace(answering=lambda: "", timeout=1.0)
    meant = TopicNameReader(at, line, ["late"], (0, 1), ends, patience)  # type: ignore[arg-type]
    node.make("late", 2)
    node.ids["late"] = bytes([2] * 16)
    node.put("late", 2, 2)
    lost = [Taken(("late", partition, 3), KafkaError._AUTO_OFFSET_RESET) for partition in (0, 1)]
    line.answers = [[lost[0]], [lost[1]], [Taken(("late", 0, 0))], [lost[0]]]
    for _ in range(4):
        meant.read(10, 0.0)
    assert line.went == [[(0, 0), (1, 0)], [(1, 0)], [(0, 1)]]
    assert said == ["topic late was deleted and made anew; it is read from its first record"]


def test_of_several_topics_only_the_one_that_was_made_anew_is_read_from_its_first_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With all of its partitions, of which there may be more by now; the others go on where they are."""
    node, said = Node(), list[str]()
    for name, number in (("late", 1), ("other", 3)):
        node.make(name, 2)
        node.ids[name] = bytes([number] * 16)
        node.put(name, 3, 3)
    methods = {"node": node, "partitions": lambda _, topic: list(range(len(node.ends[topic])))}
    monkeypatch.setattr(message_source, "Client", lambda *_, **__: type("Client", (FakeCluster,), methods)(""))
    monkeypatch.setattr(message_source, "note", said.append)
    line, ends, patience = Line(), Ends(), SimpleNamespace(ask=lambda work: work())
    ends.assign([TopicPartition(topic, partition) for topic in ("late", "other") for partition in (0, 1)])
    at: Any = SimpleNamespace(answering=lambda: "", timeout=1.0)
    meant = TopicNameReader(at, line, ["late", "other"], (), ends, patience)  # type: ignore[arg-type]
    node.make("late", 3)
    node.ids["late"] = bytes([2] * 16)
    line.answers = [[Taken(("late", 0, 0)), Taken(("other", 1, 2))]]
    given = meant.read(10, 0.0)
    assert [message.topic() for message in given] == ["other"]
    assert line.went == [[(0, 0), (1, 0), (2, 0)]]
    assert ends.assigned == {("other", 0), ("other", 1), *(("late", partition) for partition in range(3))}
    assert said == ["topic late was deleted and made anew; it is read from its first record"]
