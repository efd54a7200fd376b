"""FindCoordinator: which broker runs a group, a transactional id or a sink. Versions 0-6; from 4 many keys (KIP-699).

Key types: 0 group, 1 transactional id, 2 share group (not served), and one of ours: 100, the sink of a staged commit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from duramen.errors import ErrorCode
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.find_coordinator import FindCoordinatorResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request
    from duramen.server.api.services import Groups, Sinks, Transactions

GROUP = 0
TRANSACTION = 1
SINK = 100
FIRST_BATCHED_VERSION = 4

_RESOURCES: Final = {
    GROUP: (Resource.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    TRANSACTION: (Resource.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    SINK: (Resource.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}
"""What each type of key is, and what who may not know of it is told."""


def handle(request: Request) -> None:
    """Who leads the partition of each key, once their internal topics exist."""
    body = request.body
    keys = body.coordinator_keys if request.version >= FIRST_BATCHED_VERSION else [body.key]
    if body.key_type not in _RESOURCES:
        _reply(request, keys, dict.fromkeys(keys, ErrorCode.INVALID_REQUEST))
        return
    resource, refusal = _RESOURCES[body.key_type]
    denied = request.denies(Operation.DESCRIBE, resource, keys)
    services = request.services
    if body.key_type == SINK and len(services.image.brokers) > 1:
        _reply(request, keys, dict.fromkeys(keys, ErrorCode.UNSUPPORTED_VERSION))
        return
    coordinators: Groups | Transactions | Sinks = services.groups
    if body.key_type != GROUP:
        coordinators = services.transactions if body.key_type == TRANSACTION else services.sinks

    def created(code: ErrorCode) -> None:
        _reply(request, keys, {key: refusal if key in denied else code for key in keys}, coordinators.place)

    coordinators.ensure_topics(created)


def _reply(
    request: Request, keys: list[str], codes: dict[str, ErrorCode], place: Callable[[str], int] = lambda key: -1
) -> None:
    request.reply_in_steps(_response(request, keys, codes, place))


def _response(request: Request, keys: list[str], codes: dict[str, ErrorCode], place: Callable[[str], int]) -> Steps:
    nodes = {node: (host, port) for node, host, port, _ in request.services.endpoints(request.connection.listener)}
    coordinators = []
    for number, key in enumerate(keys, 1):
        if number % STEP == 0:
            yield
        code = codes[key]
        where: dict[str, Any] = {"node_id": -1, "host": "", "port": -1}
        if code is ErrorCode.NONE:
            node = place(key)
            if node in nodes:
                where = {"node_id": node, "host": nodes[node][0], "port": nodes[node][1]}
            else:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
        told = {"error_code": int(code), "error_message": _message(code), **where}
        if request.version < FIRST_BATCHED_VERSION:
            return FindCoordinatorResponse.new(**told)
        coordinators.append(FindCoordinatorResponse.Coordinator(key=key, **told))
    return FindCoordinatorResponse.new(coordinators=coordinators)


def _message(code: ErrorCode) -> str | None:
    if code is ErrorCode.UNSUPPORTED_VERSION:
        return "exactly-once sinks are served by a cluster of one broker, and not yet by one of several"
    return None if code is ErrorCode.NONE else code.name
