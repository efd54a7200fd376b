"""DescribeQuorum: the metadata quorum as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode
from duramen.model import METADATA_TOPIC
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.describe_quorum import DescribeQuorumResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Leader, epoch, high watermark and voters of `__cluster_metadata-0` (KIP-595, KIP-836). Versions 0-2."""
    if CLUSTER_NAME in request.denied:
        request.reply(DescribeQuorumResponse.new(error_code=int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), topics=[]))
        return
    request.reply_in_steps(_response(request))


def _response(request: Request) -> Steps:
    topics = []
    for number, topic in enumerate(request.body.topics, 1):
        topics.append((yield from _topic(request, topic)))
        if number % STEP == 0:
            yield
    services = request.services
    nodes = [
        DescribeQuorumResponse.Node(
            node_id=services.node.id,
            listeners=[
                DescribeQuorumResponse.Listener(name=address.name, host=address.host, port=address.port)
                for address in services.node.controller_endpoints or services.node.endpoints
            ],
        )
    ]
    response = DescribeQuorumResponse.new(topics=topics)
    if request.version >= 2:
        response.nodes = nodes
    return response


def _topic(request: Request, wanted: Any) -> Steps:
    # Both the request and the response have structs of these names; the response's are filled by attribute.
    Topic = DescribeQuorumResponse.TopicData  # noqa: N806
    Partition = DescribeQuorumResponse.PartitionData  # noqa: N806
    entries = []
    for number, partition in enumerate(wanted.partitions, 1):
        if number % STEP == 0:
            yield
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
    services = request.services
    partition = services.controller.partition
    now = services.clock.wall_ms()
    replica = DescribeQuorumResponse.ReplicaState(
        replica_id=services.node.id,
        log_end_offset=partition.log_end_offset,
        last_fetch_timestamp=now,
        last_caught_up_timestamp=now,
    )
    if request.version >= 2:
        replica.replica_directory_id = services.node.directory_uuid
    return kind(
        partition_index=0,
        error_message=None,
        leader_id=services.active_controller,
        leader_epoch=partition.leader_epoch,
        high_watermark=partition.high_watermark,
        current_voters=[replica],
        observers=[],
    )
