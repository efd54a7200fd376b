"""What other nodes have the active controller decide: BrokerRegistration 0-4, BrokerHeartbeat 0-2,
UnregisterBroker 0, AllocateProducerIds 0 and AlterPartition 2-3.

Served on the controller's listener (KIP-631, KIP-730), by the active controller alone: another one answers
NOT_CONTROLLER, and never hands it on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.metadata.commands import RegisterBroker, Registered
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.server.controller.command_messages import BY_API, HEARTBEATS, answer_to_wire

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Let the metadata machine decide, and answer when that is committed."""
    api = request.row.api

    def answered(answer: Any) -> None:
        request.reply(answer_to_wire(api, answer))

    if CLUSTER_NAME in request.denied:
        answered(KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
        return
    message, controller = BY_API[api.name], request.services.controller
    command = message.command(request.body)

    def heard(answer: Any) -> None:
        answered(answer)
        if not isinstance(answer, DuramenError):
            epoch = answer.broker_epoch if isinstance(answer, Registered) else command.broker_epoch
            request.services.broker_heard(command.node_id, epoch, request.connection)

    if message.kind in HEARTBEATS:
        controller.heartbeat(command, heard)
    else:
        controller.decide(command, heard if message.kind is RegisterBroker else answered)


def handle_registration(request: Request) -> None:
    """The same for a broker of this cluster."""
    if request.body.cluster_id != request.services.node.cluster_id:
        error = KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
        request.reply(answer_to_wire(request.row.api, error))
        return
    handle(request)


def handle_controller(request: Request) -> None:
    """ControllerRegistration 0: voters stand in the log with their endpoints; no node of this release sends one."""
    code, told = ErrorCode.UNSUPPORTED_VERSION, "This release records no controllers; its voters are in the log."
    if CLUSTER_NAME in request.denied:
        code, told = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "not allowed"
    elif not request.services.controller.is_active:
        code, told = ErrorCode.NOT_CONTROLLER, "another node is the active controller, or nobody"
    request.reply(request.row.api.response.new(error_code=int(code), error_message=told))
