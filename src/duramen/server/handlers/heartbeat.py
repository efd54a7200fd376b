"""Heartbeat: a member says that it lives and learns whether to rejoin. Versions 0-4 (v3 static members)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import Heartbeat
from duramen.server.coordinators.groups import group_error
from duramen.wire.messages.heartbeat import HeartbeatResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Answer at once: heartbeats wait for nothing."""
    body = request.body

    def answered(answer: ErrorCode | DuramenError) -> None:
        code = group_error(answer) if isinstance(answer, DuramenError) else answer
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Sessions start anew when the load ends: nobody has to look elsewhere because of one.
            code = ErrorCode.NONE
        request.reply(HeartbeatResponse.new(error_code=int(code)))

    if body.group_id in request.denied:
        answered(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return
    command = Heartbeat(body.group_id, body.generation_id, body.member_id, body.group_instance_id)
    request.services.groups.submit(body.group_id, command, answered)
