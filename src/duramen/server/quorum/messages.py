"""What raft says, as Kafka's requests and responses, and back: Vote, Begin- and EndQuorumEpoch, Fetch, FetchSnapshot.

All speak of one partition, `__cluster_metadata-0`. A request that names another one, or none, is refused whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from duramen.client.loop.node_client import BY_NAME, NodeRequest
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.raft.messages import (
    BeginEpochRequest,
    BeginEpochResponse,
    EndEpochRequest,
    EndEpochResponse,
    Endpoints,
    FetchRequest,
    FetchResponse,
    SnapshotRequest,
    SnapshotResponse,
    VoteRequest,
    VoteResponse,
)
from duramen.machines.raft.raft_log import OffsetEpoch
from duramen.machines.raft.voters import NO_DIRECTORY, ReplicaKey, VoterEndpoint
from duramen.model import METADATA_TOPIC, METADATA_TOPIC_ID
from duramen.wire.messages import begin_quorum_epoch as begin
from duramen.wire.messages import end_quorum_epoch as end
from duramen.wire.messages import fetch, fetch_snapshot, vote

VERSIONS: Final = {"Vote": 2, "BeginQuorumEpoch": 1, "EndQuorumEpoch": 1, "Fetch": 18, "FetchSnapshot": 1}
"""What is sent. Others are answered in the versions of the dispatch table."""

NOT_KNOWN: Final = (1 << 63) - 1
"""In a Fetch: no high watermark is named (KIP-1166)."""


def to_wire(request: Any, cluster_id: str) -> NodeRequest:
    """A request of raft's."""
    name, fields = _TO_WIRE[type(request)](request, cluster_id)
    api = BY_NAME[name]
    return NodeRequest(api, VERSIONS[name], api.request.new(**fields))


def response_from_wire(request: Any, response: Any) -> Any | None:
    """The answer to a request of raft's; None where it is about something else, or refused as a whole."""
    if response.error_code and not isinstance(request, FetchRequest):
        return None
    return _RESPONSE_FROM_WIRE[type(request)](response)


# ---- Vote


def _vote(request: VoteRequest, cluster_id: str) -> tuple[str, dict[str, Any]]:
    partition = vote.VoteRequest.PartitionData(
        partition_index=0,
        replica_epoch=request.epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory_id,
        voter_directory_id=request.voter.directory_id,
        last_offset_epoch=max(request.last_epoch, 0),
        last_offset=request.last_offset,
        pre_vote=request.pre_vote,
    )
    topics = [vote.VoteRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])]
    return "Vote", {"cluster_id": cluster_id, "voter_id": request.voter.id, "topics": topics}


def vote_from_wire(body: Any, local: ReplicaKey) -> VoteRequest:
    """A Vote request; older ones name no voter, and mean whoever gets them."""
    data = _only(body.topics, lambda topic: topic.topic_name)
    voter = ReplicaKey(body.voter_id, bytes(data.voter_directory_id))
    return VoteRequest(
        data.replica_epoch,
        ReplicaKey(data.replica_id, bytes(data.replica_directory_id)),
        local if body.voter_id < 0 else voter if voter.directory_id != NO_DIRECTORY else local._replace(id=voter.id),
        data.last_offset_epoch,
        data.last_offset,
        data.pre_vote,
    )


def vote_to_wire(answer: VoteResponse) -> Any:
    data = vote.VoteResponse.PartitionData(
        partition_index=0,
        error_code=int(answer.error),
        leader_id=answer.leader_id,
        leader_epoch=answer.epoch,
        vote_granted=answer.granted,
    )
    return vote.VoteResponse.new(
        error_code=0,
        topics=[vote.VoteResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[data])],
        node_endpoints=_nodes(vote.VoteResponse.NodeEndpoint, answer.leader_id, answer.endpoints),
    )


def _vote_response(response: Any) -> VoteResponse | None:
    data = _single(response.topics, lambda topic: topic.topic_name)
    if data is None:
        return None
    return VoteResponse(
        _code(data.error_code), data.leader_epoch, data.leader_id, data.vote_granted, _endpoints(response, data)
    )


# ---- BeginQuorumEpoch, EndQuorumEpoch


def _begin(request: BeginEpochRequest, cluster_id: str) -> tuple[str, dict[str, Any]]:
    partition = begin.BeginQuorumEpochRequest.PartitionData(
        partition_index=0,
        voter_directory_id=request.voter.directory_id,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
    )
    return "BeginQuorumEpoch", {
        "cluster_id": cluster_id,
        "voter_id": request.voter.id,
        "topics": [begin.BeginQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        "leader_endpoints": [
            begin.BeginQuorumEpochRequest.LeaderEndpoint(name=n, host=h, port=p) for n, h, p in request.endpoints
        ],
    }


def begin_from_wire(body: Any, local: ReplicaKey) -> BeginEpochRequest:
    data = _only(body.topics, lambda topic: topic.topic_name)
    directory = bytes(data.voter_directory_id)
    voter_id = local.id if body.voter_id < 0 else body.voter_id
    voter = ReplicaKey(voter_id, directory if directory != NO_DIRECTORY else local.directory_id)
    return BeginEpochRequest(data.leader_epoch, data.leader_id, voter, _named(body.leader_endpoints))


def begin_to_wire(answer: BeginEpochResponse) -> Any:
    data = begin.BeginQuorumEpochResponse.PartitionData(
        partition_index=0, error_code=int(answer.error), leader_id=answer.leader_id, leader_epoch=answer.epoch
    )
    return begin.BeginQuorumEpochResponse.new(
        error_code=0,
        topics=[begin.BeginQuorumEpochResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[data])],
        node_endpoints=_nodes(begin.BeginQuorumEpochResponse.NodeEndpoint, answer.leader_id, answer.endpoints),
    )


def _begin_response(response: Any) -> BeginEpochResponse | None:
    data = _single(response.topics, lambda topic: topic.topic_name)
    if data is None:
        return None
    return BeginEpochResponse(_code(data.error_code), data.leader_epoch, data.leader_id, _endpoints(response, data))


def _end(request: EndEpochRequest, cluster_id: str) -> tuple[str, dict[str, Any]]:
    partition = end.EndQuorumEpochRequest.PartitionData(
        partition_index=0,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_candidates=[
            end.EndQuorumEpochRequest.ReplicaInfo(candidate_id=each.id, candidate_directory_id=each.directory_id)
            for each in request.successors
        ],
    )
    return "EndQuorumEpoch", {
        "cluster_id": cluster_id,
        "topics": [end.EndQuorumEpochRequest.TopicData(topic_name=METADATA_TOPIC, partitions=[partition])],
        "leader_endpoints": [
            end.EndQuorumEpochRequest.LeaderEndpoint(name=n, host=h, port=p) for n, h, p in request.endpoints
        ],
    }


def end_from_wire(body: Any, local: ReplicaKey) -> EndEpochRequest:
    data = _only(body.topics, lambda topic: topic.topic_name)
    successors = [
        ReplicaKey(each.candidate_id, bytes(each.candidate_directory_id)) for each in data.preferred_candidates
    ]
    successors += [
        local if node_id == local.id else ReplicaKey(node_id, NO_DIRECTORY) for node_id in data.preferred_successors
    ]
    return EndEpochRequest(data.leader_epoch, data.leader_id, tuple(successors), _named(body.leader_endpoints))


def end_to_wire(answer: EndEpochResponse) -> Any:
    data = end.EndQuorumEpochResponse.PartitionData(
        partition_index=0, error_code=int(answer.error), leader_id=answer.leader_id, leader_epoch=answer.epoch
    )
    return end.EndQuorumEpochResponse.new(
        error_code=0,
        topics=[end.EndQuorumEpochResponse.TopicData(topic_name=METADATA_TOPIC, partitions=[data])],
        node_endpoints=_nodes(end.EndQuorumEpochResponse.NodeEndpoint, answer.leader_id, answer.endpoints),
    )


def _end_response(response: Any) -> EndEpochResponse | None:
    data = _single(response.topics, lambda topic: topic.topic_name)
    if data is None:
        return None
    return EndEpochResponse(_code(data.error_code), data.leader_epoch, data.leader_id, _endpoints(response, data))


# ---- Fetch


def _fetch(request: FetchRequest, cluster_id: str) -> tuple[str, dict[str, Any]]:
    partition = fetch.FetchRequest.FetchPartition(
        partition=0,
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=max(request.last_epoch, 0),
        partition_max_bytes=request.max_bytes,
        replica_directory_id=request.replica.directory_id,
        high_watermark=request.high_watermark,
    )
    return "Fetch", {
        "cluster_id": cluster_id,
        "replica_state": fetch.FetchRequest.ReplicaState(replica_id=request.replica.id),
        "max_wait_ms": int(request.max_wait * 1000),
        "min_bytes": 0,
        "max_bytes": request.max_bytes,
        "topics": [fetch.FetchRequest.FetchTopic(topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    }


def fetch_from_wire(body: Any, version: int) -> FetchRequest:
    """A Fetch of the metadata log; a replica's is known by its id, anybody else (-1) is an observer without a name."""
    data = _only(body.topics, lambda topic: METADATA_TOPIC if _is_metadata(topic, version) else "")
    replica_id = body.replica_state.replica_id if version >= 15 else body.replica_id
    known = data.high_watermark
    return FetchRequest(
        ReplicaKey(replica_id, bytes(data.replica_directory_id)),
        data.current_leader_epoch,
        data.fetch_offset,
        data.last_fetched_epoch,
        -1 if known < 0 else known,
        body.max_wait_ms / 1000,
        min(max(body.max_bytes, 0), max(data.partition_max_bytes, 0)),
    )


def _is_metadata(topic: Any, version: int) -> bool:
    return bool(topic.topic_id == METADATA_TOPIC_ID if version >= 13 else topic.topic == METADATA_TOPIC)


def fetch_to_wire(answer: FetchResponse, version: int) -> Any:
    data = fetch.FetchResponse.PartitionData(
        partition_index=0,
        error_code=int(answer.error),
        high_watermark=answer.high_watermark,
        last_stable_offset=answer.high_watermark,
        log_start_offset=answer.log_start,
        current_leader=fetch.FetchResponse.LeaderIdAndEpoch(leader_id=answer.leader_id, leader_epoch=answer.epoch),
        aborted_transactions=None,
        records=answer.records if answer.records is not None else b"",
    )
    if answer.diverging is not None:
        data.diverging_epoch = fetch.FetchResponse.EpochEndOffset(
            epoch=answer.diverging.epoch, end_offset=answer.diverging.offset
        )
    if answer.snapshot is not None:
        data.snapshot_id = fetch.FetchResponse.SnapshotId(
            end_offset=answer.snapshot.offset, epoch=answer.snapshot.epoch
        )
    topic = fetch.FetchResponse.FetchableTopicResponse(
        topic=METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[data]
    )
    return fetch.FetchResponse.new(
        responses=[topic], node_endpoints=_nodes(fetch.FetchResponse.NodeEndpoint, answer.leader_id, answer.endpoints)
    )


def _fetch_response(response: Any) -> FetchResponse | None:
    if response.error_code:
        return None
    data = _single(response.responses, lambda topic: METADATA_TOPIC)
    if data is None:
        return None
    diverging, snapshot = data.diverging_epoch, data.snapshot_id
    return FetchResponse(
        _code(data.error_code),
        data.current_leader.leader_id,
        data.current_leader.leader_epoch,
        data.high_watermark,
        data.records or b"",
        None if diverging.end_offset < 0 else OffsetEpoch(diverging.end_offset, diverging.epoch),
        None if snapshot.end_offset < 0 else OffsetEpoch(snapshot.end_offset, snapshot.epoch),
        data.log_start_offset,
        _endpoints(response, data.current_leader),
    )


# ---- FetchSnapshot


def _snapshot(request: SnapshotRequest, cluster_id: str) -> tuple[str, dict[str, Any]]:
    partition = fetch_snapshot.FetchSnapshotRequest.PartitionSnapshot(
        partition=0,
        current_leader_epoch=request.epoch,
        snapshot_id=fetch_snapshot.FetchSnapshotRequest.SnapshotId(
            end_offset=request.snapshot.offset, epoch=request.snapshot.epoch
        ),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    return "FetchSnapshot", {
        "cluster_id": cluster_id,
        "replica_id": request.replica.id,
        "max_bytes": request.max_bytes,
        "topics": [fetch_snapshot.FetchSnapshotRequest.TopicSnapshot(name=METADATA_TOPIC, partitions=[partition])],
    }


def snapshot_from_wire(body: Any) -> SnapshotRequest:
    data = _only(body.topics, lambda topic: topic.name, "partition")
    return SnapshotRequest(
        ReplicaKey(body.replica_id, bytes(data.replica_directory_id)),
        data.current_leader_epoch,
        OffsetEpoch(data.snapshot_id.end_offset, data.snapshot_id.epoch),
        data.position,
        max(body.max_bytes, 0),
    )


def snapshot_to_wire(answer: SnapshotResponse) -> Any:
    data = fetch_snapshot.FetchSnapshotResponse.PartitionSnapshot(
        index=0,
        error_code=int(answer.error),
        snapshot_id=fetch_snapshot.FetchSnapshotResponse.SnapshotId(
            end_offset=answer.snapshot.offset, epoch=answer.snapshot.epoch
        ),
        current_leader=fetch_snapshot.FetchSnapshotResponse.LeaderIdAndEpoch(
            leader_id=answer.leader_id, leader_epoch=answer.epoch
        ),
        size=answer.size,
        position=answer.position,
        unaligned_records=answer.data if answer.data is not None else b"",
    )
    return fetch_snapshot.FetchSnapshotResponse.new(
        error_code=0,
        topics=[fetch_snapshot.FetchSnapshotResponse.TopicSnapshot(name=METADATA_TOPIC, partitions=[data])],
        node_endpoints=_nodes(fetch_snapshot.FetchSnapshotResponse.NodeEndpoint, answer.leader_id, answer.endpoints),
    )


def _snapshot_response(response: Any) -> SnapshotResponse | None:
    data = _single(response.topics, lambda topic: topic.name, "index")
    if data is None:
        return None
    return SnapshotResponse(
        _code(data.error_code),
        data.current_leader.leader_id,
        data.current_leader.leader_epoch,
        OffsetEpoch(data.snapshot_id.end_offset, data.snapshot_id.epoch),
        data.size,
        data.position,
        data.unaligned_records or b"",
        _endpoints(response, data.current_leader),
    )


# ---- pieces


def _only(topics: Iterable[Any], name: Callable[[Any], str], index: str = "") -> Any:
    """The one partition that a request speaks of; KafkaError INVALID_REQUEST, UNKNOWN_TOPIC_OR_PARTITION."""
    found = [(name(topic), partition) for topic in topics for partition in topic.partitions]
    if len(found) != 1:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"one partition is asked about at a time, not {len(found)}")
    topic, partition = found[0]
    number = getattr(partition, index or _index(partition))
    if topic != METADATA_TOPIC or number != 0:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{number} is not {METADATA_TOPIC}-0")
    return partition


def _index(partition: Any) -> str:
    return "partition_index" if hasattr(partition, "partition_index") else "partition"


def _single(topics: Iterable[Any], name: Callable[[Any], str], index: str = "") -> Any | None:
    """The same of a response; None where it is about something else."""
    try:
        return _only(topics, name, index)
    except KafkaError:
        return None


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def _named(endpoints: Iterable[Any]) -> Endpoints:
    return tuple(VoterEndpoint(each.name, each.host, each.port) for each in endpoints)


def _nodes(kind: Any, leader_id: int, endpoints: Endpoints) -> list[Any]:
    """Where the leader listens: its first address."""
    return [kind(node_id=leader_id, host=host, port=port) for _, host, port in endpoints[:1] if leader_id >= 0]


def _endpoints(response: Any, leader: Any) -> Endpoints:
    return tuple(
        VoterEndpoint("", each.host, each.port) for each in response.node_endpoints if each.node_id == leader.leader_id
    )


class _Api(NamedTuple):
    """How a request of one API is read, and its answer written."""

    read: Callable[[Any, int, ReplicaKey], Any]
    write: Callable[[Any, int], Any]


BY_API: Final = {
    "Vote": _Api(
        lambda body, version, local: vote_from_wire(body, local), lambda answer, version: vote_to_wire(answer)
    ),
    "BeginQuorumEpoch": _Api(
        lambda body, version, local: begin_from_wire(body, local), lambda answer, version: begin_to_wire(answer)
    ),
    "EndQuorumEpoch": _Api(
        lambda body, version, local: end_from_wire(body, local), lambda answer, version: end_to_wire(answer)
    ),
    "Fetch": _Api(lambda body, version, local: fetch_from_wire(body, version), fetch_to_wire),
    "FetchSnapshot": _Api(
        lambda body, version, local: snapshot_from_wire(body), lambda answer, version: snapshot_to_wire(answer)
    ),
}

_TO_WIRE: Final[dict[type, Callable[[Any, str], tuple[str, dict[str, Any]]]]] = {
    VoteRequest: _vote,
    BeginEpochRequest: _begin,
    EndEpochRequest: _end,
    FetchRequest: _fetch,
    SnapshotRequest: _snapshot,
}
_RESPONSE_FROM_WIRE: Final[dict[type, Callable[[Any], Any | None]]] = {
    VoteRequest: _vote_response,
    BeginEpochRequest: _begin_response,
    EndEpochRequest: _end_response,
    FetchRequest: _fetch_response,
    SnapshotRequest: _snapshot_response,
}
