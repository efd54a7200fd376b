"""DescribeAcls, CreateAcls and DeleteAcls: there is no authorizer, and whoever asks is told so as Kafka tells it.

MirrorMaker, `kafka-acls` and consoles know SECURITY_DISABLED and go on without lists; an API that is not there is an
error to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import ErrorCode
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.wire.messages.create_acls import CreateAclsResponse
from duramen.wire.messages.delete_acls import DeleteAclsResponse
from duramen.wire.messages.describe_acls import DescribeAclsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def _refusal(request: Request, told: str) -> tuple[int, str | None]:
    if CLUSTER_NAME in request.denied:
        return int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED), None
    return int(ErrorCode.SECURITY_DISABLED), told


def handle_describe(request: Request) -> None:
    """No lists: SECURITY_DISABLED. Versions 1-3."""
    code, told = _refusal(request, "No Authorizer is configured on the broker")
    request.reply(DescribeAclsResponse.new(error_code=code, error_message=told, resources=[]))


def handle_create(request: Request) -> None:
    """SECURITY_DISABLED for every list. Versions 1-3."""
    code, told = _refusal(request, "No Authorizer is configured.")
    refused = CreateAclsResponse.AclCreationResult(error_code=code, error_message=told)
    request.reply(CreateAclsResponse.new(results=[refused] * len(request.body.creations)))


def handle_delete(request: Request) -> None:
    """SECURITY_DISABLED for every filter. Versions 1-3."""
    code, told = _refusal(request, "No Authorizer is configured.")
    refused = DeleteAclsResponse.DeleteAclsFilterResult(error_code=code, error_message=told, matching_acls=[])
    request.reply(DeleteAclsResponse.new(filter_results=[refused] * len(request.body.filters)))
