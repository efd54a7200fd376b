"""DeleteGroups: remove empty groups and their offsets (KIP-229). Versions 0-2."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import DeleteGroups
from duramen.server.coordinators.groups import group_error
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.delete_groups import DeleteGroupsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Each group is deleted or refused alone: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND."""
    names = list(dict.fromkeys(request.body.groups_names))
    codes: dict[str, ErrorCode] = {}

    def answered(name: str, answer: Any) -> None:
        codes[name] = group_error(answer) if isinstance(answer, DuramenError) else answer[0]
        if len(codes) == len(names):
            request.reply_in_steps(_response(names, codes))

    if not names:
        request.reply(DeleteGroupsResponse.new(results=[]))

    def ask(some: list[str]) -> None:
        for name in some:
            if name in request.denied:
                answered(name, [ErrorCode.GROUP_AUTHORIZATION_FAILED])
            else:
                request.services.groups.submit(name, DeleteGroups((name,)), partial(answered, name))

    request.services.groups.in_turns(request, names, ask)


def _response(names: list[str], codes: dict[str, ErrorCode]) -> Steps:
    results = []
    for number, name in enumerate(names, 1):
        if number % STEP == 0:
            yield
        results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=name, error_code=int(codes[name])))
    return DeleteGroupsResponse.new(results=results)
