"""Admin requests at any node, handed on in envelopes; and envelopes that are not what they should be."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.quorum_world import QuorumWorld

from duramen.client.loop.node_client import BY_NAME, NodeRequest, call
from duramen.errors import ErrorCode
from duramen.server.controller import envelopes
from duramen.wire.frame import SIZE_BYTES, encode_request, parse_response

ASKER = ("User:alice", "10.9.9.9:5")


@pytest.fixture
def cluster() -> QuorumWorld:
    cluster = QuorumWorld()
    for node_id in cluster.hosts:
        cluster.join(node_id)
    return cluster


def creation(name: str, timeout_ms: int = 5000, **fields: Any) -> NodeRequest:
    topic = BY_NAME["CreateTopics"].request.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return call("CreateTopics", 7, topics=[topic], timeout_ms=timeout_ms, **fields)


def answer(cluster: QuorumWorld, node_id: int, request: NodeRequest) -> Any:
    answers = cluster.send(node_id, request)
    assert cluster.until(lambda: bool(answers))
    return answers[0]


def test_every_node_answers_when_its_own_image_has_the_result(cluster: QuorumWorld) -> None:
    active = cluster.active()
    for node_id in cluster.hosts:
        name, image = f"of-{node_id}", cluster.brokers[node_id].image
        (topic,) = answer(cluster, node_id, creation(name)).topics
        assert (topic.name, topic.error_code) == (name, 0)
        assert name in image.topics
        assert name in cluster.brokers[active].image.topics
        resource = BY_NAME["IncrementalAlterConfigs"].request.AlterConfigsResource
        entry = BY_NAME["IncrementalAlterConfigs"].request.AlterableConfig
        changes = [
            resource(
                resource_type=2,
                resource_name=name,
                configs=[entry(name="retention.ms", config_operation=0, value="777")],
            )
        ]
        told = answer(cluster, node_id, call("IncrementalAlterConfigs", 1, resources=changes))
        assert [each.error_code for each in told.responses] == [0]
        assert image.topic_config(name) == {"retention.ms": "777"}
        more = BY_NAME["CreatePartitions"].request.CreatePartitionsTopic(name=name, count=3, assignments=None)
        told = answer(cluster, node_id, call("CreatePartitions", 3, topics=[more], timeout_ms=5000))
        assert [each.error_code for each in told.results] == [0]
        assert len(image.topics[name].partitions) == 3
        gone = BY_NAME["DeleteTopics"].request.DeleteTopicState(name=name)
        told = answer(cluster, node_id, call("DeleteTopics", 6, topics=[gone], timeout_ms=5000))
        assert [each.error_code for each in told.responses] == [0]
        assert name not in image.topics


def test_only_the_answer_waits_for_the_image(cluster: QuorumWorld) -> None:
    """A node that learns nothing new answers when the client's time is over: the topic is there."""
    node_id = cluster.others()[0]
    reader = cluster.brokers[node_id].controller.reader
    reader._next_slice = lambda: None  # type: ignore[method-assign]
    reader._watermark_moved = lambda: None  # type: ignore[method-assign]
    begun = cluster.world.loop.now
    reader._scheduled = True
    (topic,) = answer(cluster, node_id, creation("late", timeout_ms=2000)).topics
    assert topic.error_code == 0
    assert 1.9 < cluster.world.loop.now - begun < 2.5
    assert "late" not in cluster.brokers[node_id].image.topics
    assert "late" in cluster.brokers[cluster.active()].image.topics


def test_refusals_come_back_as_they_are(cluster: QuorumWorld) -> None:
    for node_id in cluster.hosts:
        (topic,) = answer(cluster, node_id, creation("no/name")).topics
        assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        assert "no/name" in topic.error_message


def test_the_quorum_is_described_by_its_leader(cluster: QuorumWorld) -> None:
    request = BY_NAME["DescribeQuorum"].request
    topics = [request.TopicData(topic_name="__cluster_metadata", partitions=[request.PartitionData(partition_index=0)])]
    for node_id in cluster.hosts:
        told = cluster.ask(node_id, "DescribeQuorum", 2, topics=topics)
        partition = told.topics[0].partitions[0]
        assert (partition.error_code, partition.leader_id) == (0, cluster.active())
        assert len(partition.current_voters) == 3


def test_large_requests_are_handed_on(cluster: QuorumWorld) -> None:
    kind = BY_NAME["CreateTopics"].request.CreatableTopic
    names = [f"t-{number:04}-{'x' * 200}" for number in range(300)]
    topics = [kind(name=name, num_partitions=1, replication_factor=1) for name in names]
    node_id = cluster.others()[0]
    told = cluster.ask(node_id, "CreateTopics", 7, topics=topics, timeout_ms=30000)
    assert {topic.name: topic.error_code for topic in told.topics} == dict.fromkeys(names, 0)
    assert set(names) <= set(cluster.brokers[node_id].image.topics)


def test_too_many_elements_are_refused_where_they_arrive(cluster: QuorumWorld) -> None:
    kind = BY_NAME["CreateTopics"].request.CreatableTopic
    topics = [kind(name=f"t-{number}", num_partitions=1, replication_factor=1) for number in range(20_001)]
    told = cluster.ask(cluster.others()[0], "CreateTopics", 7, topics=topics, timeout_ms=30000)
    assert {topic.error_code for topic in told.topics} == {int(ErrorCode.POLICY_VIOLATION)}
    wrapped = envelopes.wrap(call("CreateTopics", 7, topics=topics), 1, "c", ASKER)
    told = answer(cluster, cluster.active(), wrapped)
    _, inner = parse_response(BY_NAME["CreateTopics"], 7, memoryview(told.response_data))
    assert {topic.error_code for topic in inner.topics} == {int(ErrorCode.POLICY_VIOLATION)}


def test_no_client_hears_of_an_election(cluster: QuorumWorld) -> None:
    active = cluster.active()
    cluster.world.nodes[active].kill()
    waiting = [cluster.send(each, creation(f"of-{each}", timeout_ms=20000)) for each in cluster.running]
    assert cluster.until(lambda: all(waiting))
    assert [answers[0].topics[0].error_code for answers in waiting] == [0, 0]


def test_a_deposed_controller_answers_nothing_wrong(cluster: QuorumWorld) -> None:
    """Cut off, it decides what nobody will commit: the client hears of it when the successor has decided."""
    deposed = cluster.active()
    others = cluster.others()
    for other in others:
        cluster.world.cut(deposed, other)
    answers = cluster.send(deposed, creation("once", timeout_ms=25000))
    cluster.run(10.0)
    assert answers == []
    assert "once" not in cluster.brokers[deposed].image.topics
    (topic,) = answer(cluster, others[0], creation("once")).topics
    assert topic.error_code == 0
    cluster.world.heal_all()
    assert cluster.until(lambda: bool(answers))
    assert answers[0].topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    ids = {broker.image.topics["once"].id for broker in cluster.brokers.values()}
    assert ids == {bytes(topic.topic_id)}


def test_without_a_majority_clients_are_told_that_the_time_is_over(cluster: QuorumWorld) -> None:
    alone, *rest = sorted(cluster.hosts, key=lambda each: each == cluster.active())
    for node_id in rest:
        cluster.world.nodes[node_id].kill()
    cluster.run(3.0)
    (topic,) = answer(cluster, alone, creation("never", timeout_ms=2000)).topics
    assert topic.error_code == ErrorCode.REQUEST_TIMED_OUT
    assert "no active controller" in topic.error_message


# ---- envelopes ---------------------------------------------------------------------------------------------------


def test_the_asker_travels_with_it(cluster: QuorumWorld) -> None:
    asked: list[tuple[str, str]] = []

    class Authorizer:
        def denied(self, principal: str, host: str, *_: Any) -> frozenset[str]:
            asked.append((principal, host))
            return frozenset({"mine"}) if principal == "User:alice" else frozenset()

    active = cluster.active()
    cluster.brokers[active].access.authorizer = Authorizer()
    told = answer(cluster, active, envelopes.wrap(creation("mine"), 7, "a-client", ASKER))
    assert told.error_code == 0
    correlation_id, inner = parse_response(BY_NAME["CreateTopics"], 7, memoryview(told.response_data))
    assert (correlation_id, inner.topics[0].error_code) == (7, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert ("User:alice", "10.9.9.9") in asked


def test_a_node_that_does_not_decide_refuses_envelopes(cluster: QuorumWorld) -> None:
    for node_id in cluster.others():
        told = answer(cluster, node_id, envelopes.wrap(creation("t"), 1, "c", ASKER))
        assert (told.error_code, told.response_data) == (ErrorCode.NOT_CONTROLLER, None)


def sealed(data: bytes, **fields: Any) -> NodeRequest:
    whole = envelopes.wrap(creation("t"), 1, "c", ASKER).request
    rest = {"request_principal": whole.request_principal, "client_host_address": whole.client_host_address}
    return call("Envelope", 0, request_data=data, **{**rest, **fields})


def frame(request: NodeRequest) -> bytes:
    parts = encode_request(request.api, request.version, 1, "c", request.request)
    return b"".join(bytes(part) for part in parts if not hasattr(part, "file"))[SIZE_BYTES:]


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (sealed(b""), ErrorCode.INVALID_REQUEST),
        (sealed(frame(creation("t"))[:-3]), ErrorCode.INVALID_REQUEST),
        (sealed(frame(sealed(frame(creation("t"))))), ErrorCode.INVALID_REQUEST),
        (sealed(frame(call("Metadata", 12))), ErrorCode.INVALID_REQUEST),
        (sealed(frame(call("AllocateProducerIds", 0))), ErrorCode.INVALID_REQUEST),
        (sealed(b"\0\x13\0\x63" + frame(creation("t"))[4:]), ErrorCode.UNSUPPORTED_VERSION),
        (sealed(b"\x7f\x13\0\x01" + frame(creation("t"))[4:]), ErrorCode.UNSUPPORTED_VERSION),
        (sealed(frame(creation("t")), request_principal=None), ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (sealed(frame(creation("t")), request_principal=b"\0\0\x05"), ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE),
        (sealed(frame(creation("t")), client_host_address=b"12345"), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_no_request_to_hand_on_is_refused(cluster: QuorumWorld, request_: NodeRequest, code: ErrorCode) -> None:
    active = cluster.active()
    told = answer(cluster, active, request_)
    assert (ErrorCode(told.error_code), told.response_data) == (code, None)
    assert answer(cluster, active, creation("goes-on")).topics[0].error_code == 0


def test_a_large_one_that_cannot_be_read_ends_alone(cluster: QuorumWorld) -> None:
    kind = BY_NAME["CreateTopics"].request.CreatableTopic
    whole = frame(call("CreateTopics", 7, topics=[kind(name="x" * 20_000), kind(name="y" * 20_000)]))
    told = answer(cluster, cluster.active(), sealed(whole[:-2]))
    assert told.error_code == ErrorCode.INVALID_REQUEST
