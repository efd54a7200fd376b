"""DescribeTopicPartitions, page by page: each partition once, whatever the limit and whatever happens in between."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line

from duramen.errors import ErrorCode
from duramen.wire.messages import API

DESCRIBE, DELETE = 75, 20
REQUEST = API[DESCRIBE].request
TOPICS = {"a": 1, "b": 4, "c": 3}
EVERYTHING = [(name, partition) for name, count in TOPICS.items() for partition in range(count)]


@pytest.fixture
def line() -> Line:
    client = InProcess(max_request_partition_size_limit="5").connect()
    create = API[19].request
    topics = [
        create.CreatableTopic(name=name, num_partitions=count, replication_factor=1) for name, count in TOPICS.items()
    ]
    assert [topic.error_code for topic in client.call(19, 7, topics=topics, timeout_ms=1000).topics] == [0, 0, 0]
    return client


def page(line: Line, limit: int, names: tuple[str, ...] = (), cursor: tuple[str, int] | None = None) -> Any:
    place = None if cursor is None else REQUEST.Cursor(topic_name=cursor[0], partition_index=cursor[1])
    topics = [REQUEST.TopicRequest(name=name) for name in names]
    return line.call(DESCRIBE, 0, topics=topics, response_partition_limit=limit, cursor=place)


def told(reply: Any) -> list[tuple[str, int]]:
    return [(topic.name, partition.partition_index) for topic in reply.topics for partition in topic.partitions]


def next_of(reply: Any) -> tuple[str, int] | None:
    return None if reply.next_cursor is None else (reply.next_cursor.topic_name, reply.next_cursor.partition_index)


@pytest.mark.parametrize("names", [(), ("c", "a", "b", "a", "absent")])
@pytest.mark.parametrize("limit", [-1, 0, 1, 2, 3, 5, 8, 100])
def test_pages_tell_each_partition_once(line: Line, limit: int, names: tuple[str, ...]) -> None:
    found: list[tuple[str, int]] = []
    refused: list[str] = []
    cursor = None
    while True:
        reply = page(line, limit, names, cursor)
        assert len(told(reply)) <= max(1, min(limit, 5)), "max.request.partition.size.limit holds, too"
        found += told(reply)
        refused += [topic.name for topic in reply.topics if topic.error_code]
        cursor = next_of(reply)
        if cursor is None:
            break
    assert found == EVERYTHING
    assert refused == (["absent"] if names else [])


@pytest.mark.parametrize("names", [(), ("a", "b", "c")])
def test_a_topic_that_goes_between_two_pages_hides_nothing_of_the_next_one(line: Line, names: tuple[str, ...]) -> None:
    assert next_of(page(line, 3, names)) == ("b", 2)
    state = API[DELETE].request.DeleteTopicState(name="b")
    assert line.call(DELETE, 6, topics=[state], timeout_ms=1000).responses[0].error_code == 0
    rest = page(line, 5, names, ("b", 2))
    assert told(rest) == [("c", 0), ("c", 1), ("c", 2)]
    gone = [(topic.name, topic.error_code) for topic in rest.topics if topic.error_code]
    assert gone == ([("b", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)] if names else [])


def test_a_cursor_behind_the_last_partition_goes_on_with_the_next_topic(line: Line) -> None:
    assert told(page(line, 5, (), ("b", 9))) == [("c", 0), ("c", 1), ("c", 2)]


@pytest.mark.parametrize("cursor", [("b", -1), ("absent", 0)])
def test_a_cursor_that_leads_nowhere_is_refused_for_each_topic(line: Line, cursor: tuple[str, int]) -> None:
    reply = page(line, 5, ("c", "b"), cursor)
    assert [(topic.name, topic.error_code) for topic in reply.topics] == [
        ("b", ErrorCode.INVALID_REQUEST),
        ("c", ErrorCode.INVALID_REQUEST),
    ]
    assert next_of(reply) is None
