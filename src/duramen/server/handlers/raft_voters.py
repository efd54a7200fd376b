"""AddRaftVoter 0-1, RemoveRaftVoter 0 and UpdateRaftVoter 0: other voters of the quorum (KIP-853), not in this release.

UNSUPPORTED_VERSION is what Kafka answers where its quorum cannot change (kraft.version 0): tools take it for final, and
show the words. Were the APIs not there at all, they would say that the node is too old.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import ErrorCode
from duramen.server.api.authorizer import CLUSTER_NAME

if TYPE_CHECKING:
    from duramen.server.api.request import Request

TOLD = "This release cannot change the voters of the metadata quorum; a later one will."


def handle_change(request: Request) -> None:
    """Refuse to add or remove a voter."""
    code = _code(request)
    told = TOLD if code is ErrorCode.UNSUPPORTED_VERSION else None
    request.reply(request.row.api.response.new(error_code=int(code), error_message=told))


def handle_update(request: Request) -> None:
    """Refuse a voter's new address: no node of this release sends one."""
    request.reply(request.row.api.response.new(error_code=int(_code(request))))


def _code(request: Request) -> ErrorCode:
    denied = CLUSTER_NAME in request.denied
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED if denied else ErrorCode.UNSUPPORTED_VERSION
