"""JoinGroup: a member asks to be in the next generation. Versions 0-9.

v1 rebalance time-out · v4 MEMBER_ID_REQUIRED (KIP-394) · v5 static members (KIP-345) · v7 protocol type · v8 reason
(KIP-800) · v9 skip_assignment (KIP-814)
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import Joined, JoinGroup
from duramen.server.coordinators.groups import group_error
from duramen.server.coordinators.shell import MAX_BATCH_BYTES
from duramen.wire.messages.join_group import JoinGroupResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Park the member with its group; the answer comes when the generation is formed."""
    body = request.body

    def answered(answer: Joined | DuramenError) -> None:
        if isinstance(answer, DuramenError):
            answer = Joined(error=group_error(answer), member_id=body.member_id)
        reply(request, answer)

    if body.group_id in request.denied:
        reply(request, Joined(error=ErrorCode.GROUP_AUTHORIZATION_FAILED, member_id=body.member_id))
        return
    if sum(len(protocol.metadata) for protocol in body.protocols) > MAX_BATCH_BYTES:
        # Its generation could not be written, which Kafka says with this code, too; and it would be kept till then.
        reply(request, Joined(error=ErrorCode.UNKNOWN_SERVER_ERROR, member_id=body.member_id))
        return
    host = request.connection.transport.peer.rpartition(":")[0].strip("[]")
    command = JoinGroup(
        group_id=body.group_id,
        member_id=body.member_id,
        instance_id=body.group_instance_id,
        client_id=request.client_id,
        client_host=f"/{host}",
        session_timeout_ms=body.session_timeout_ms,
        rebalance_timeout_ms=body.rebalance_timeout_ms if request.version >= 1 else body.session_timeout_ms,
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols),
        new_id=str(UUID(bytes=request.services.world.entropy.random_bytes(16), version=4)),
        requires_member_id=request.version >= 4,
        may_skip_assignment=request.version >= 9,
        reason=body.reason,
    )
    request.services.groups.submit(body.group_id, command, answered)


def reply(request: Request, joined: Joined) -> None:
    """Tell the member its generation, or why it has none."""
    protocol = joined.protocol
    if protocol is None and request.version < 7:
        protocol = ""
    response = JoinGroupResponse.new(
        error_code=int(joined.error),
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=protocol,
        leader=joined.leader,
        member_id=joined.member_id,
        members=[
            JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in joined.members
        ],
    )
    if request.version >= 9:
        response.skip_assignment = joined.skip_assignment
    request.reply(response)
