"""DescribeGroups: state, protocol and members of classic groups. Versions 0-6.

v3 authorized operations (KIP-430) · v4 instance ids · v6 GROUP_ID_NOT_FOUND instead of a Dead group (KIP-1043)
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import DescribeGroups, GroupDescription
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.groups import group_error
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.describe_groups import DescribeGroupsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

GROUP_OPERATIONS = (
    Operation.READ,
    Operation.DELETE,
    Operation.DESCRIBE,
    Operation.DESCRIBE_CONFIGS,
    Operation.ALTER_CONFIGS,
)


def handle(request: Request) -> None:
    """Ask each machine about all its groups."""
    names = list(dict.fromkeys(request.body.groups))  # once each, as in describe_producers.py
    described: dict[str, Any] = {}

    def answered(asked: list[str], answer: Any) -> None:
        for number, name in enumerate(asked):
            described[name] = _describe(request, name, answer[number] if isinstance(answer, list) else answer)
        if len(described) == len(names):
            request.reply_in_steps(_response([described[name] for name in names]))

    coordinators = request.services.groups
    denied = [name for name in names if name in request.denied]
    if denied or not names:
        answered(denied, ErrorCode.GROUP_AUTHORIZATION_FAILED)

    def ask(some: list[str]) -> None:
        for asked in coordinators.sharing(some):
            coordinators.submit(asked[0], DescribeGroups(tuple(asked)), partial(answered, asked))

    coordinators.in_turns(request, [name for name in names if name not in request.denied], ask)


def _response(groups: list[Any]) -> Steps:
    if len(groups) > STEP:
        yield  # they are there, but encoding them takes as long as making them
    return DescribeGroupsResponse.new(groups=groups)


def _describe(request: Request, name: str, answer: Any) -> Any:
    if isinstance(answer, DuramenError):
        answer = group_error(answer)
    if isinstance(answer, ErrorCode):
        return DescribeGroupsResponse.DescribedGroup(group_id=name, error_code=int(answer))
    group: GroupDescription = answer
    entry = DescribeGroupsResponse.DescribedGroup(
        group_id=name,
        group_state=group.state,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            DescribeGroupsResponse.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
    )
    if not group.exists and request.version >= 6:
        entry.error_code = int(ErrorCode.GROUP_ID_NOT_FOUND)
        entry.error_message = (
            f"Group {name} is not a classic group." if group.is_other_type else f"Group {name} not found."
        )
    elif request.version >= 3 and request.body.include_authorized_operations:
        entry.authorized_operations = sum(
            1 << operation for operation in GROUP_OPERATIONS if not request.denies(operation, Resource.GROUP, [name])
        )
    return entry
