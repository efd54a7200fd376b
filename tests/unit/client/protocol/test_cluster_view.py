"""The way to a node, as questions and replies: what is asked, what is remembered, what is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from duramen.client.protocol.cluster_view import ClusterView, Lookup, Question, Reply
from duramen.client.protocol.outcomes import check, check_known, settled
from duramen.client.protocol.routes import ANY, CONTROLLER, SINK, CoordinatorKey
from duramen.client.protocol.versions import ApiVersions
from duramen.errors import ErrorCode, KafkaError, NetworkError, NoConnectionError, OutcomeUnknownError
from duramen.model import TopicPartition
from duramen.wire.messages import API

TP = TopicPartition("t", 0)
NEW = ApiVersions({3: (0, 13), 10: (0, 6)})
OLD = ApiVersions({3: (0, 4), 10: (0, 3)})

_T = TypeVar("_T")


def metadata(question: Question) -> Any:
    """Nodes 1 and 2; topic t, which 2 leads."""
    message = API[3].response
    topics = []
    for name in question.topics or ():
        code = 0 if name == "t" else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        partition = message.MetadataResponsePartition(error_code=0, partition_index=0, leader_id=2)
        topics.append(message.MetadataResponseTopic(error_code=code, name=name, partitions=[] if code else [partition]))
    brokers = [message.MetadataResponseBroker(node_id=number, host="h", port=number) for number in (1, 2)]
    return message.new(brokers=brokers, controller_id=1, topics=topics)


def found(lookup: Lookup[_T], answer: Callable[[Question], Any] = metadata, versions: ApiVersions = NEW) -> Any:
    """(what it finds, the questions it asked)"""
    asked: list[Question] = []
    try:
        question = next(lookup)
        while True:
            asked.append(question)
            question.request(versions)
            question = lookup.send(Reply(answer(question), versions))
    except StopIteration as done:
        return done.value, asked


def test_only_what_is_not_known_is_asked() -> None:
    view = ClusterView([("seed", 9)])
    assert found(view.node_of(ANY)) == (None, [])
    node, asked = found(view.node_of(TP))
    assert (node.id, asked) == (2, [Question(("t",))])
    for route in (TP, 1, CONTROLLER):
        assert found(view.node_of(route))[1] == []
    assert view.addresses() == [("h", 1), ("h", 2), ("seed", 9)]
    view.forget(TP)
    assert found(view.by_leader([TP])) == ({2: [TP]}, [Question(("t",))])
    view.forget(ANY)
    assert found(view.node_of(CONTROLLER))[1] == [Question(())]


def test_a_leader_that_has_died_is_one_that_comes_back_or_is_followed() -> None:
    def dead(question: Question) -> Any:
        told = metadata(question)
        told.brokers = told.brokers[:1]
        return told

    view = ClusterView([("seed", 9)])
    for lookup in (view.node_of(TP), view.by_leader([TP])):
        with pytest.raises(KafkaError, match="node 2, is not there") as refused:
            found(lookup, dead)
        assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE
        assert refused.value.retriable


def test_what_is_not_there_is_said_and_not_remembered() -> None:
    view = ClusterView([("seed", 9)])
    for _ in range(2):
        with pytest.raises(KafkaError, match="topic u: UNKNOWN_TOPIC_OR_PARTITION"):
            found(view.node_of(TopicPartition("u", 0)))
    with pytest.raises(KafkaError, match="no such partition"):
        found(view.node_of(TopicPartition("t", 7)))
    with pytest.raises(KafkaError, match="node 3 is not there now"):
        found(view.node_of(3))


@pytest.mark.parametrize("versions", [OLD, NEW], ids=["old", "new"])
def test_a_coordinator_is_found_in_old_and_new_versions(versions: ApiVersions) -> None:
    wanted = CoordinatorKey("s", SINK)
    message = API[10].response
    place = {"node_id": 5, "host": "h", "port": 5, "error_code": 0}

    def answer(question: Question) -> Any:
        return message.new(**place) if versions is OLD else message.new(coordinators=[message.Coordinator(**place)])

    view = ClusterView([("seed", 9)])
    node, asked = found(view.node_of(wanted), answer, versions)
    assert (node.address, asked) == ("h:5", [Question(None, coordinator=wanted)])
    assert found(view.coordinator(wanted))[1] == []
    view.forget(wanted)
    with pytest.raises(KafkaError, match="COORDINATOR_NOT_AVAILABLE"):
        found(view.coordinator(wanted), lambda _: message.new(error_code=15), OLD)


def test_an_address_that_the_cluster_gave_is_named_so() -> None:
    view = ClusterView([("h", 1)])
    nodes = found(view.refresh([]))[0].nodes
    error = NoConnectionError("cannot reach it")
    assert view.unreachable(nodes[1], error) is error
    assert "advertised.listeners" in str(view.unreachable(nodes[2], error))


def test_what_a_lost_or_refused_request_means() -> None:
    gone = NetworkError("gone")
    late = KafkaError(ErrorCode.REQUEST_TIMED_OUT)
    for error in (gone, late):
        check_known(error, resend=True)
        with pytest.raises(OutcomeUnknownError):
            check_known(error, resend=False)
    for known in (NoConnectionError("never sent"), KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)):
        check_known(known, resend=False)
    check(int(ErrorCode.MESSAGE_TOO_LARGE), "call", resend=False)
    with pytest.raises(OutcomeUnknownError, match="call: REQUEST_TIMED_OUT"):
        check(int(late.code), "call", resend=False)
    with pytest.raises(KafkaError, match="call: REQUEST_TIMED_OUT"):
        check(int(late.code), "call", resend=True)


def test_answers_for_good_are_kept_and_others_asked_again() -> None:
    tps = [TopicPartition("t", number) for number in range(4)]
    moved, large = KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER), KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
    kept: dict[TopicPartition, Any] = {}
    assert settled(tps[:3], {tps[0]: "fine", tps[1]: large, tps[2]: moved}, None, kept) == {tps[2]: moved}
    assert kept == {tps[0]: "fine", tps[1]: large}
    gone = NetworkError("gone")
    assert settled(tps[2:], {}, gone, kept) == dict.fromkeys(tps[2:], gone)
    assert settled(tps[3:], {}, None, kept) == {}
    assert isinstance(kept[tps[3]], KafkaError)  # the answer leaves it out


def test_topics_are_asked_for_anew_and_their_ids_once() -> None:
    view = ClusterView([])
    assert found(view.topic_ids([TP, TopicPartition("t", 1)])) == ({"t": bytes(16)}, [Question(("t",))])
    assert found(view.topic_ids([TP]))[1] == []
    topic, asked = found(view.refresh_topic("t"))
    assert (topic.name, asked) == ("t", [Question(("t",))])
    assert found(view.refresh_topic("t", create=True))[1] == [Question(("t",), create=True)]
