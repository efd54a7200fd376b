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
            node_id=voter.id,
            listeners=[
                DescribeQuorumResponse.Listener(name=address.name, host=address.host, port=address.port)
                for address in voter.endpoints or services.node.endpoints  # of a node alone, without such a listener
            ],
        )
        for voter in services.controller.quorum.voters
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
    quorum = services.controller.quorum
    if not quorum.is_leader:
        return kind(
            partition_index=0,
            error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
            error_message=f"node {services.node.id} does not lead the quorum",
            leader_id=quorum.leader_id,
            leader_epoch=quorum.epoch,
        )
    since = services.clock.wall_ms() - 1000 * services.clock.monotonic()
    voters: list[Any] = []
    observers: list[Any] = []
    for state in quorum.replica_states():
        replica = DescribeQuorumResponse.ReplicaState(
            replica_id=state.id,
            log_end_offset=state.log_end,
            last_fetch_timestamp=_wall_ms(since, state.last_fetch),
            last_caught_up_timestamp=_wall_ms(since, state.last_caught_up),
        )
        if request.version >= 2:
            replica.replica_directory_id = state.directory_id
        (voters if state.is_voter else observers).append(replica)
    return kind(
        partition_index=0,
        error_message=None,
        leader_id=services.node.id,
        leader_epoch=quorum.epoch,
        high_watermark=services.controller.partition.high_watermark,
        current_voters=voters,
        observers=observers,
    )


def _wall_ms(since: float, at: float) -> int:
    """A time of the monotonic clock, by the other one; -1: never."""
    return int(since + 1000 * at) if at >= 0 else -1
