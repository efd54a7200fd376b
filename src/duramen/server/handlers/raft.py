"""What nodes of the metadata quorum ask each other: Vote, BeginQuorumEpoch, EndQuorumEpoch, Fetch, FetchSnapshot.

Served on the controller's listener alone (KIP-595, KIP-630, KIP-853, KIP-996).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode, KafkaError
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.server.quorum.messages import BY_API

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Let this node's part of the quorum answer; some answers wait, as a Fetch does that has nothing to bring."""
    services = request.services
    quorum = services.controller.quorum
    api = BY_API[request.row.api.name]
    asked_cluster = request.body.cluster_id
    if CLUSTER_NAME in request.denied:
        _refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    if asked_cluster is not None and asked_cluster != services.node.cluster_id:
        _refuse(request, ErrorCode.INCONSISTENT_CLUSTER_ID)
        return
    try:
        asked = api.read(request.body, request.version, quorum.local)
    except KafkaError as error:
        _refuse(request, error.code)
        return

    def answered(answer: Any) -> None:
        request.reply(api.write(answer, request.version))

    quorum.received(asked, answered, request.connection)


def _refuse(request: Request, code: ErrorCode) -> None:
    request.reply(request.row.api.response.new(error_code=int(code)))
