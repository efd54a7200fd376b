"""Commands as Kafka's requests, and answers as its responses: what comes back is what was sent."""

from __future__ import annotations

from typing import Any

from tests.worlds.metadata_cluster import topic_id

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata import AlterPartition, IsrChange, IsrChanged
from duramen.server.controller.command_messages import BY_API, answer_from_wire, answer_to_wire, to_wire
from duramen.wire.messages import API, ApiMessage

ALTER = API[56]
PROPOSALS = AlterPartition(
    3,
    77,
    (
        IsrChange(topic_id(1), 4, 9, ((3, 77), (1, 70)), 12),
        IsrChange(topic_id(1), 5, 9, ((3, 77),), 1),
        IsrChange(topic_id(2), 0, 0, ((3, 77), (2, -1)), 0),
        IsrChange(topic_id(1), 6, 2, ((3, 77),), 3),
    ),
)
ANSWERS = [
    IsrChanged(topic_id(1), 4, ErrorCode.NONE, 3, 9, (1, 3), 13),
    IsrChanged(topic_id(1), 5, ErrorCode.INVALID_UPDATE_VERSION, -1, 0, (), 0),
    IsrChanged(topic_id(2), 0, ErrorCode.INELIGIBLE_REPLICA, -1, 0, (), 0),
    IsrChanged(topic_id(1), 6, ErrorCode.NONE, 3, 2, (3,), 4),
]


def request_over_the_wire(command: Any) -> Any:
    """The command that a controller takes from what a node sends."""
    sent = to_wire(command, "cluster")
    version = sent.version
    data = sent.api.request.encode(sent.request, version)
    return BY_API[sent.api.name].command(sent.api.request.decode(data, version))


def answer_over_the_wire(api: ApiMessage, command: Any, answer: Any) -> Any:
    version = BY_API[api.name].version
    data = api.response.encode(answer_to_wire(api, answer), version)
    return answer_from_wire(command, api.response.decode(data, version))


def test_proposals_of_in_sync_replicas() -> None:
    assert request_over_the_wire(PROPOSALS) == PROPOSALS
    assert answer_over_the_wire(ALTER, PROPOSALS, ANSWERS) == ANSWERS


def test_nothing_is_proposed() -> None:
    nothing = AlterPartition(3, 77, ())
    assert request_over_the_wire(nothing) == nothing
    assert answer_over_the_wire(ALTER, nothing, []) == []


def test_replicas_without_broker_epochs() -> None:
    request = ALTER.request
    partition = request.PartitionData(partition_index=0, leader_epoch=1, new_isr=[1, 2], partition_epoch=2)
    topics = [request.TopicData(topic_id=topic_id(1), partitions=[partition])]
    command = BY_API["AlterPartition"].command(request.new(broker_id=1, broker_epoch=7, topics=topics))
    assert command == AlterPartition(1, 7, (IsrChange(topic_id(1), 0, 1, ((1, -1), (2, -1)), 2),))


def test_an_error_of_all() -> None:
    told = answer_over_the_wire(ALTER, PROPOSALS, KafkaError(ErrorCode.STALE_BROKER_EPOCH, "other"))
    assert isinstance(told, KafkaError)
    assert told.code is ErrorCode.STALE_BROKER_EPOCH
