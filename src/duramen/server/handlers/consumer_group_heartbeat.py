"""ConsumerGroupHeartbeat: a member of a consumer group joins, stays, leaves (KIP-848). Versions 0-1.

v1 members make their own ids · regular expressions. Where the protocol is off, by `group.version` or by the settings,
the answer is UNSUPPORTED_VERSION: clients know that answer, and librdkafka looks for ever for a broker with the API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.group.consumer.commands import ConsumerAnswer, ConsumerHeartbeat
from duramen.machines.metadata.features import GROUP_VERSION
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.group_effects import SHOWN_CHARACTERS
from duramen.server.coordinators.groups import group_error
from duramen.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request
    from duramen.server.api.services import Services

FIRST_VERSION_WITH_OWN_IDS = 1
FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID)
TOLD = (
    "Groups of the consumer protocol are off: the feature group.version is 0, or group.coordinator.rebalance.protocols "
    "does not list them. Set group.protocol=classic, or have them turned on."
)


def is_served(services: Services) -> bool:
    """Whether there are consumer groups in this cluster, and on this node."""
    level = services.publisher.image.features.get(GROUP_VERSION, 0)
    return level > 0 and "consumer" in services.settings.config.strings("group.coordinator.rebalance.protocols")


def handle(request: Request) -> None:
    """Have the group's machine decide; what it wrote is committed when the answer leaves."""
    body = request.body
    if not is_served(request.services):
        _refuse(request, ErrorCode.UNSUPPORTED_VERSION, TOLD)
        return
    if body.group_id in request.denied:
        _refuse(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return
    names = body.subscribed_topic_names
    if names and request.denies(Operation.DESCRIBE, Resource.TOPIC, names):
        _refuse(request, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        return
    owned = body.topic_partitions
    host = request.connection.transport.peer.rpartition(":")[0].strip("[]")
    command = ConsumerHeartbeat(
        group_id=body.group_id,
        member_id=body.member_id,
        epoch=body.member_epoch,
        instance_id=body.instance_id,
        rack=body.rack_id,
        rebalance_timeout_ms=body.rebalance_timeout_ms,
        topics=None if names is None else tuple(names),
        expression=body.subscribed_topic_regex,
        assignor=body.server_assignor,
        owned=None if owned is None else tuple((each.topic_id, tuple(each.partitions)) for each in owned),
        client_id=request.client_id,
        client_host=f"/{host}",
        new_id="" if body.member_id else str(UUID(bytes=request.services.world.entropy.random_bytes(16), version=4)),
        brings_id=request.version >= FIRST_VERSION_WITH_OWN_IDS,
        caller=request.asker,
    )

    def answered(answer: ConsumerAnswer | DuramenError) -> None:
        if isinstance(answer, DuramenError):
            if isinstance(answer, KafkaError) and answer.code in FENCED:
                fields = {"group": body.group_id[:SHOWN_CHARACTERS], "member": body.member_id[:SHOWN_CHARACTERS]}
                request.services.report("group-member-fenced", **fields, error=answer)
            _refuse(request, group_error(answer), str(answer) if isinstance(answer, KafkaError) else None)
        else:
            request.reply(_response(answer))

    request.services.groups.submit(body.group_id, command, answered)


def _response(answer: ConsumerAnswer) -> object:
    message = ConsumerGroupHeartbeatResponse
    assignment = None
    if answer.assignment is not None:
        assignment = message.Assignment(
            topic_partitions=[
                message.TopicPartitions(topic_id=topic_id, partitions=list(indexes))
                for topic_id, indexes in answer.assignment
            ]
        )
    return message.new(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


def _refuse(request: Request, code: ErrorCode, message: str | None = None) -> None:
    request.reply(ConsumerGroupHeartbeatResponse.new(error_code=int(code), error_message=message))
