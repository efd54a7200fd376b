"""What raft says survives Kafka's messages, and what is about something else is refused."""

from __future__ import annotations

from typing import Any

import pytest

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    FetchRequest,
    FetchResponse,
    SnapshotRequest,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from duramen.machines.raft.raft_log import OffsetEpoch
from duramen.machines.raft.voters import NO_DIRECTORY, ReplicaKey, VoterEndpoint
from duramen.model import METADATA_TOPIC_ID
from duramen.server.quorum.messages import BY_API, response_from_wire, to_wire
from duramen.wire.messages import API
from duramen.wire.messages import vote as vote_message

ONE, TWO = ReplicaKey(1, bytes(15) + b"\7"), ReplicaKey(2, bytes(15) + b"\x08")
NAMED = (VoterEndpoint("CONTROLLER", "10.0.0.1", 9093),)
LEADER = (VoterEndpoint("", "10.0.0.1", 9093),)

REQUESTS = [
    VoteRequest(5, ONE, TWO, 4, 100, True),
    VoteRequest(5, ONE, TWO, 0, 0, False),
    BeginEpochRequest(5, 1, TWO, NAMED),
    EndEpochRequest(5, 1, (TWO, ONE), NAMED),
    FetchRequest(TWO, 5, 100, 4, 90, 0.5, 1 << 20),
    SnapshotRequest(TWO, 5, OffsetEpoch(100, 4), 1000, 1 << 20),
]
RESPONSES = [
    (REQUESTS[0], VoteResponse(ErrorCode.NONE, 5, 1, True, LEADER)),
    (REQUESTS[0], VoteResponse(ErrorCode.FENCED_LEADER_EPOCH, 6, -1, False)),
    (REQUESTS[2], BeginEpochResponse(ErrorCode.NONE, 5, 1, LEADER)),
    (REQUESTS[3], EndEpochResponse(ErrorCode.NONE, 5, 1, LEADER)),
    (REQUESTS[4], FetchResponse(ErrorCode.NONE, 1, 5, 95, b"batch", None, None, 7, LEADER)),
    (REQUESTS[4], FetchResponse(ErrorCode.NONE, 1, 5, 95, b"", OffsetEpoch(50, 3), None, 7, LEADER)),
    (REQUESTS[4], FetchResponse(ErrorCode.NONE, 1, 5, 95, b"", None, OffsetEpoch(70, 3), 7, LEADER)),
    (REQUESTS[4], FetchResponse(ErrorCode.NOT_LEADER_OR_FOLLOWER, 1, 5, -1, b"", None, None, -1, LEADER)),
    (REQUESTS[5], SnapshotResponse(ErrorCode.NONE, 1, 5, OffsetEpoch(100, 4), 2000, 1000, b"piece", LEADER)),
]


def over_the_wire(message: Any, body: Any, version: int) -> Any:
    return message.decode(memoryview(b"".join(bytes(part) for part in message.encode_parts(body, version))), version)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: type(each).__name__)
def test_a_request_is_read_as_it_was_meant(request_: Any) -> None:
    sent = to_wire(request_, "a-cluster")
    body = over_the_wire(sent.api.request, sent.request, sent.version)
    assert body.cluster_id == "a-cluster"
    assert BY_API[sent.api.name].read(body, sent.version, TWO) == request_


@pytest.mark.parametrize(("request_", "answer"), RESPONSES, ids=lambda each: type(each).__name__)
def test_so_is_an_answer(request_: Any, answer: Any) -> None:
    sent = to_wire(request_, "a-cluster")
    response = over_the_wire(sent.api.response, BY_API[sent.api.name].write(answer, sent.version), sent.version)
    assert response_from_wire(request_, response) == answer


def test_older_voters_name_no_directory_and_mean_whoever_is_asked() -> None:
    message = API[52].request
    partition = message.PartitionData(
        partition_index=0, replica_epoch=3, replica_id=1, last_offset_epoch=2, last_offset=9
    )
    body = message.new(topics=[message.TopicData(topic_name="__cluster_metadata", partitions=[partition])])
    asked = BY_API["Vote"].read(over_the_wire(message, body, 0), 0, TWO)
    assert asked == VoteRequest(3, ReplicaKey(1, NO_DIRECTORY), TWO, 2, 9, False)


def test_a_fetch_that_names_no_commit_point_has_the_latest_one() -> None:
    """So an older replica is not answered at once, again and again (KIP-1166)."""
    message = API[1].request
    partition = message.FetchPartition(partition=0, fetch_offset=9, last_fetched_epoch=2, partition_max_bytes=100)
    body = message.new(
        replica_id=3,
        max_wait_ms=10,
        max_bytes=50,
        topics=[message.FetchTopic(topic_id=METADATA_TOPIC_ID, topic="__cluster_metadata", partitions=[partition])],
    )
    for version in (12, 14):
        asked = BY_API["Fetch"].read(over_the_wire(message, body, version), version, TWO)
        assert (asked.replica.id, asked.high_watermark, asked.max_bytes) == (3, (1 << 63) - 1, 50)


@pytest.mark.parametrize(
    ("topics", "code"),
    [
        ([], ErrorCode.INVALID_REQUEST),
        ([("__cluster_metadata", [0, 0])], ErrorCode.INVALID_REQUEST),
        ([("__cluster_metadata", [1])], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ([("t", [0])], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_other_partitions_are_refused(topics: list[tuple[str, list[int]]], code: ErrorCode) -> None:
    message = vote_message.VoteRequest
    body = message.new(
        topics=[
            message.TopicData(
                topic_name=name, partitions=[message.PartitionData(partition_index=each) for each in which]
            )
            for name, which in topics
        ]
    )
    with pytest.raises(KafkaError) as refused:
        BY_API["Vote"].read(body, 2, TWO)
    assert refused.value.code is code
