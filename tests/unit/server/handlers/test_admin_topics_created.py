"""CreateTopics as clients see it, in every version that returns a configuration."""

from __future__ import annotations

from time import process_time

import pytest
from tests.worlds.broker_world import InProcess

from duramen.config import describe_topic
from duramen.errors import ErrorCode, KafkaError
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
        assert {topic.error_code for topic in reply.topics} == {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
        return process_time() - began

    few = min(cost(10_001) for _ in range(3))
    assert cost(60_006) < 18 * few, "each name was compared with all the others, which held the loop for a minute"


@pytest.mark.parametrize(("partitions", "most"), [(1, 500), (200, 2), (600, 1)])
def test_so_many_topics_are_created_for_a_client_that_asks_for_them_and_more_when_it_asks_again(
    partitions: int, most: int
) -> None:
    """All were one decision: a second of the loop for 10,000 of them."""
    server = InProcess(num_partitions=str(partitions))
    line = server.connect()
    line.create_topic("there")
    names = ["a b", "there", *(f"absent-{number}" for number in range(most + most // 2 + 1))]
    for asked in range(1, 4):
        request = API[3].request
        topics = [request.MetadataRequestTopic(name=name) for name in [*names, *names]]
        told = line.call(3, 9, topics=topics, allow_auto_topic_creation=True).topics
        assert [each.name for each in told] == names
        codes = [each.error_code for each in told]
        made = min(asked * most, len(names) - 2)
        later = [ErrorCode.LEADER_NOT_AVAILABLE] * (len(names) - 2 - made)
        assert codes == [ErrorCode.INVALID_TOPIC_EXCEPTION, 0, *[0] * made, *later]
        assert len(server.broker.image.topics) == 1 + made
        assert all(each.partitions or each.error_code for each in told)


def test_what_refuses_the_topics_that_are_created_at_once_is_told_of_all() -> None:
    server = InProcess()
    line = server.connect()
    refused = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR)
    server.broker.controller.create = lambda topics, done: done(refused)  # type: ignore[method-assign]
    topics = [API[3].request.MetadataRequestTopic(name=f"absent-{number}") for number in range(700)]
    told = line.call(3, 9, topics=topics, allow_auto_topic_creation=True).topics
    assert [each.error_code for each in told] == [ErrorCode.KAFKA_STORAGE_ERROR] * 700


def test_topics_that_can_never_be_created_keep_no_others_from_it() -> None:
    """They were tried anew in each request, and those behind them told to ask again for ever."""
    server = InProcess(num_partitions="200")
    line = server.connect()
    bad = [f"a.b{number}" for number in range(5)]
    for name in bad:
        line.create_topic(name.replace(".", "_"))
    names = [*bad[:4], "good", bad[4], "better"]
    topics = [API[3].request.MetadataRequestTopic(name=name) for name in names]
    told = line.call(3, 9, topics=topics, allow_auto_topic_creation=True).topics
    wrong = ErrorCode.INVALID_TOPIC_EXCEPTION
    assert [each.error_code for each in told] == [wrong, wrong, wrong, wrong, 0, wrong, 0]
