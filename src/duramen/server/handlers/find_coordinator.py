"""FindCoordinator: which broker runs a group or a sink. Versions 0-6; from 4 many keys at once (KIP-699).

Key types: 0 group, 1 transactional id (refused: transactions are not served yet), 2 share group (not served), and one
of our own: 100, the sink of a staged commit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.find_coordinator import FindCoordinatorResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

GROUP = 0
TRANSACTION = 1
SINK = 100
FIRST_BATCHED_VERSION = 4


def handle(request: Request) -> None:
    """This node for every group and sink, once their internal topics exist."""
    body = request.body
    keys = body.coordinator_keys if request.version >= FIRST_BATCHED_VERSION else [body.key]
    if body.key_type not in (GROUP, SINK):
        refused = ErrorCode.INVALID_REQUEST
        if body.key_type == TRANSACTION:
            # Not retriable, and clients stop at once: they would retry anything softer until their time-out.
            refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            peer = request.connection.transport.peer
            request.services.refused_transactions.tell(keys, request.client_id, peer)
        _reply(request, keys, dict.fromkeys(keys, refused))
        return
    is_sink = body.key_type == SINK
    resource = Resource.TRANSACTIONAL_ID if is_sink else Resource.GROUP
    refusal = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if is_sink else ErrorCode.GROUP_AUTHORIZATION_FAILED
    denied = request.denies(Operation.DESCRIBE, resource, keys)

    def created(code: ErrorCode) -> None:
        _reply(request, keys, {key: refusal if key in denied else code for key in keys})

    if is_sink:
        request.services.sinks.ensure_topics(created)
    else:
        request.services.groups.ensure_topics(created)


def _reply(request: Request, keys: list[str], codes: dict[str, ErrorCode]) -> None:
    request.reply_in_steps(_response(request, keys, codes))


def _response(request: Request, keys: list[str], codes: dict[str, ErrorCode]) -> Steps:
    node = next(iter(request.services.endpoints(request.connection.listener)), None)
    coordinators = []
    for number, key in enumerate(keys, 1):
        if number % STEP == 0:
            yield
        code = codes[key]
        if code is ErrorCode.NONE and node is None:
            code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        place: dict[str, Any] = {"node_id": -1, "host": "", "port": -1}
        if code is ErrorCode.NONE and node is not None:
            place = {"node_id": node[0], "host": node[1], "port": node[2]}
        told = {"error_code": int(code), "error_message": _message(code), **place}
        if request.version < FIRST_BATCHED_VERSION:
            return FindCoordinatorResponse.new(**told)
        coordinators.append(FindCoordinatorResponse.Coordinator(key=key, **told))
    return FindCoordinatorResponse.new(coordinators=coordinators)


def _message(code: ErrorCode) -> str | None:
    if code is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return "transactions are not served yet"
    return None if code is ErrorCode.NONE else code.name
