"""ListGroups: the groups this broker coordinates. Versions 0-5 (v4 filter by state, KIP-518; v5 by type, KIP-848)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import ListGroups
from duramen.server.api.authorizer import CLUSTER_NAME, Operation, Resource
from duramen.server.coordinators.groups import group_error
from duramen.wire.messages.list_groups import ListGroupsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Ask every machine here; the first error is the reply's. As in Kafka, what nobody coordinates is not listed."""
    body = request.body
    # Here, once: each of the machines would do it for a filter of any length.
    states = frozenset(map(str.lower, body.states_filter)) if request.version >= 4 else frozenset()
    types = frozenset(map(str.lower, body.types_filter)) if request.version >= 5 else frozenset()

    def answered(answers: list[Any]) -> None:
        error = ErrorCode.NONE
        groups = []
        for answer in answers:
            if isinstance(answer, DuramenError):
                code = group_error(answer)
                if error is ErrorCode.NONE and code is not ErrorCode.NOT_COORDINATOR:
                    error = code
                continue
            groups += answer
        if CLUSTER_NAME in request.denied:
            hidden = request.denies(Operation.DESCRIBE, Resource.GROUP, [group.group_id for group in groups])
            groups = [group for group in groups if group.group_id not in hidden]
        request.reply(
            ListGroupsResponse.new(
                error_code=int(error),
                groups=[
                    ListGroupsResponse.ListedGroup(
                        group_id=group.group_id,
                        protocol_type=group.protocol_type,
                        group_state=group.state,
                        group_type=group.group_type,
                    )
                    for group in groups
                ],
            )
        )

    request.services.groups.submit_everywhere(ListGroups(states, types), answered)
