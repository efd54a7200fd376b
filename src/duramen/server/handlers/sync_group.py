"""SyncGroup: the leader brings the assignment, everybody fetches theirs. Versions 0-5.

v3 static members · v5 protocol type and name are checked (KIP-559)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import SyncedMember, SyncGroup
from duramen.server.coordinators.groups import group_error
from duramen.wire.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Park the member until the generation's assignment is durable."""
    body = request.body

    def answered(answer: SyncedMember | DuramenError) -> None:
        if isinstance(answer, DuramenError):
            code = group_error(answer)
            if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # As Kafka up to 3: whatever rebalance it belonged to is gone, and some clients end at this code.
                code = ErrorCode.REBALANCE_IN_PROGRESS
            answer = SyncedMember(error=code)
        request.reply(
            SyncGroupResponse.new(
                error_code=int(answer.error),
                protocol_type=answer.protocol_type,
                protocol_name=answer.protocol,
                assignment=answer.assignment,
            )
        )

    if body.group_id in request.denied:
        answered(SyncedMember(error=ErrorCode.GROUP_AUTHORIZATION_FAILED))
        return
    if request.version >= 5 and (body.protocol_type is None or body.protocol_name is None):
        answered(SyncedMember(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    command = SyncGroup(
        body.group_id,
        body.generation_id,
        body.member_id,
        body.group_instance_id,
        body.protocol_type,
        body.protocol_name,
        tuple((assignment.member_id, bytes(assignment.assignment)) for assignment in body.assignments),
    )
    request.services.groups.submit(body.group_id, command, answered)
