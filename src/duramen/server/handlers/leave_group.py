"""LeaveGroup: members leave, or an administrator removes them. Versions 0-5 (v3 several at once, KIP-345)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import LeaveGroup, Leaver
from duramen.server.coordinators.groups import group_error
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.leave_group import LeaveGroupResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

FIRST_BATCHED_VERSION = 3


def handle(request: Request) -> None:
    """Remove the members; below v3 the only member's error is the request's."""
    body = request.body
    if request.version >= FIRST_BATCHED_VERSION:
        leavers = tuple(Leaver(m.member_id, m.group_instance_id, m.reason) for m in body.members)
    else:
        leavers = (Leaver(body.member_id),)

    def answered(answer: Any) -> None:
        if isinstance(answer, DuramenError):
            _reply(request, leavers, group_error(answer), [])
        else:
            _reply(request, leavers, *answer)

    if body.group_id in request.denied:
        _reply(request, leavers, ErrorCode.GROUP_AUTHORIZATION_FAILED, [])
        return
    request.services.groups.submit(body.group_id, LeaveGroup(body.group_id, leavers), answered)


def _reply(request: Request, leavers: tuple[Leaver, ...], code: ErrorCode, codes: list[ErrorCode]) -> None:
    if request.version < FIRST_BATCHED_VERSION:
        only = codes[0] if code is ErrorCode.NONE and codes else code
        request.reply(LeaveGroupResponse.new(error_code=int(only)))
        return
    request.reply_in_steps(_response(leavers, code, codes))


def _response(leavers: tuple[Leaver, ...], code: ErrorCode, codes: list[ErrorCode]) -> Steps:
    members = []
    for number, (leaver, error) in enumerate(zip(leavers, codes, strict=False), 1):
        if number % STEP == 0:
            yield
        members.append(
            LeaveGroupResponse.MemberResponse(
                member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=int(error)
            )
        )
    return LeaveGroupResponse.new(error_code=int(code), members=members)
