"""DescribeQuorum and ListPartitionReassignments: the metadata quorum as it is, and replicas on the move (none)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode
from duramen.model import METADATA_TOPIC
from duramen.server.authorizer import CLUSTER_NAME
from duramen.wire.messages.describe_quorum import DescribeQuorumResponse
from duramen.wire.messages.list_partition_reassignments import ListPartitionReassignmentsResponse

if TYPE_CHECKING:
    from duramen.server.request import Request


def handle(request: Request) -> None:
    """Leader, epoch, high watermark and voters of `__cluster_metadata-0` (KIP-595, KIP-836). Versions 0-2."""
    if CLUSTER_NAME in request.denied:
        request.reply(DescribeQuorumResponse.new(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), topics=[]))
        return
    topics = [_topic(request, topic) for topic in request.body.topics]
    broker = request.broker
    nodes = [
        DescribeQuorumResponse.Node(
            node_id=broker.node_id,
            listeners=[
                DescribeQuorumResponse.Listener(name=address.name, host=address.host, port=address.port)
                for address in broker.advertised_addresses
            ],
        )
    ]
    response = DescribeQuorumResponse.new(topics=topics)
    if request.version >= 2:
        response.nodes = nodes
    request.reply(response)


def _topic(request: Request, wanted: Any) -> Any:
    # Both the request and the response have structs of these names; the response's are filled by attribute.
    Topic = DescribeQuorumResponse.TopicData  # noqa: N806
    Partition = DescribeQuorumResponse.PartitionData  # noqa: N806
    entries = []
    for partition in wanted.partitions:
        index = partition.partition_index
        if wanted.topic_name != METADATA_TOPIC or index != 0:
            entries.append(
                Partition(
                    partition_index=index, error_code=int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), error_message=None
                )
            )
            continue
        entries.append(_quorum(request, Partition))
    return Topic(topic_name=wanted.topic_name, partitions=entries)


def _quorum(request: Request, kind: Any) -> Any:
    broker = request.broker
    partition = broker.catalog.partition
    now = broker.clock.wall_ms()
    replica = DescribeQuorumResponse.ReplicaState(
        replica_id=broker.node_id,
        log_end_offset=partition.log_end_offset,
        last_fetch_timestamp=now,
        last_caught_up_timestamp=now,
    )
    if request.version >= 2:
        replica.replica_directory_id = broker.directory_uuid
    return kind(
        partition_index=0,
        error_message=None,
        leader_id=broker.node_id,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        current_voters=[replica],
        observers=[],
    )


def handle_reassignments(request: Request) -> None:
    """Partitions whose replicas are moving: those whose image says so (KIP-455). Version 0."""
    if CLUSTER_NAME in request.denied:
        code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        request.reply(ListPartitionReassignmentsResponse.new(error_code=code, error_message=None, topics=[]))
        return
    image = request.broker.image
    asked = None
    if request.body.topics is not None:
        asked = {(topic.name, index) for topic in request.body.topics for index in topic.partition_indexes}
    topics = []
    for name in image.names():
        moving = [
            ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
            for index, partition in enumerate(image.topics[name].partitions)
            if (partition.adding or partition.removing) and (asked is None or (name, index) in asked)
        ]
        if moving:
            topics.append(ListPartitionReassignmentsResponse.OngoingTopicReassignment(name=name, partitions=moving))
    request.reply(ListPartitionReassignmentsResponse.new(error_message=None, topics=topics))
