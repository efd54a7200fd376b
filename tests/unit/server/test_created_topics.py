"""CreateTopics as clients see it, in every version that returns a configuration."""

from __future__ import annotations

from time import process_time

import pytest
from tests.unit.server.broker_world import InProcess

from duramen.config import describe_topic
from duramen.errors import ErrorCode
from duramen.server.handlers import admin_topics
from duramen.wire.messages import API

CREATE = API[19].request


@pytest.mark.parametrize("version", [5, 6, 7])
def test_a_topic_that_is_refused_has_an_empty_configuration_and_not_a_null_one(version: int) -> None:
    line = InProcess().connect()
    line.create_topic("taken")
    topics = [
        CREATE.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        for name in ("taken", "a b", "twice", "twice")
    ]
    answers = line.call(19, version, topics=topics, timeout_ms=1000).topics
    assert {answer.name: (answer.error_code, answer.configs) for answer in answers} == {
        "taken": (ErrorCode.TOPIC_ALREADY_EXISTS, []),
        "a b": (ErrorCode.INVALID_TOPIC_EXCEPTION, []),
        "twice": (ErrorCode.INVALID_REQUEST, []),
    }


def test_each_topic_of_a_request_is_told_its_own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were worked out for each topic anew, half a millisecond each, while everybody waited."""
    asked = []
    monkeypatch.setattr(admin_topics, "describe_topic", lambda *given: asked.append(given[1]) or describe_topic(*given))
    line = InProcess().connect()
    wanted = {"a": "1000", "b": "1000", "c": "2000", "d": None, "e": None}
    topics = [
        CREATE.CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[CREATE.CreatableTopicConfig(name="retention.ms", value=value)] if value is not None else [],
        )
        for name, value in wanted.items()
    ]
    answers = line.call(19, 7, topics=topics, timeout_ms=1000).topics
    told = {one.name: {entry.name: entry.value for entry in one.configs}["retention.ms"] for one in answers}
    assert told == {name: value or "604800000" for name, value in wanted.items()}
    assert len(asked) == 3


def test_the_cost_of_asking_for_topics_that_are_not_there_grows_with_their_number() -> None:
    server = InProcess()
    line = server.connect()

    def cost(count: int) -> float:
        request = API[3].request
        topics = [request.MetadataRequestTopic(name=f"absent-{number}") for number in range(count)]
        began = process_time()
        reply = line.call(3, 9, topics=topics, allow_auto_topic_creation=True)
        assert {topic.error_code for topic in reply.topics} == {ErrorCode.POLICY_VIOLATION}
        return process_time() - began

    few = min(cost(10_001) for _ in range(3))
    assert cost(60_006) < 18 * few, "each name was compared with all the others, which held the loop for a minute"
