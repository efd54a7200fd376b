"""DescribeCluster: the cluster's id, controller and nodes (KIP-700, KIP-919, fenced ones: KIP-1073). Versions 0-2.

A broker's listener tells of brokers, a controller's of controllers: what is asked of the other one is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode
from duramen.server.api.authorizer import CLUSTER_NAME, Resource
from duramen.server.handlers.metadata import operations_bits
from duramen.server.net.listener_type import ListenerType
from duramen.wire.messages.describe_cluster import DescribeClusterResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

NO_CONTROLLER = -1
FIRST_VERSION_WITH_TYPES = 1
FIRST_VERSION_WITH_FENCED = 2


def handle(request: Request) -> None:
    """Describe the brokers. Each of them is told as the controller: it passes on what only that can do."""
    services = request.services
    if _is_refused(request, ListenerType.BROKER):
        return
    with_fenced = request.version >= FIRST_VERSION_WITH_FENCED and request.body.include_fenced_brokers
    nodes = []
    for _, broker in sorted(services.image.brokers.items()):
        endpoint = broker.endpoint(request.connection.listener)
        if endpoint is None or not (broker.active or with_fenced):
            continue
        node = DescribeClusterResponse.DescribeClusterBroker(
            broker_id=broker.id, host=endpoint.host, port=endpoint.port, rack=broker.rack
        )
        if request.version >= FIRST_VERSION_WITH_FENCED:
            node.is_fenced = broker.fenced
        nodes.append(node)
    _reply(request, ListenerType.BROKER, nodes, services.node.id)


def handle_controllers(request: Request) -> None:
    """Describe the controllers, and name the active one, for whoever changes something has to ask that."""
    services = request.services
    if _is_refused(request, ListenerType.CONTROLLER):
        return
    nodes = [
        DescribeClusterResponse.DescribeClusterBroker(broker_id=node, host=host, port=port)
        for node, host, port in services.controllers(request.connection.listener)
    ]
    active = services.active_controller
    if all(node.broker_id != active for node in nodes):
        active = NO_CONTROLLER  # as in Kafka: a client would look in vain for one whose address it is not told
    _reply(request, ListenerType.CONTROLLER, nodes, active)


def _is_refused(request: Request, here: ListenerType) -> bool:
    """Answer a request for nodes of another kind, or of somebody who may not ask controllers."""
    wanted = request.body.endpoint_type if request.version >= FIRST_VERSION_WITH_TYPES else ListenerType.BROKER
    if here is ListenerType.CONTROLLER and CLUSTER_NAME in request.denied:
        code, message = ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None
    elif wanted == here:
        return False
    elif wanted in (ListenerType.BROKER, ListenerType.CONTROLLER):
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        told, other = here.name, ListenerType(wanted).name
        message = f"The request was sent to an endpoint of type {told}, but we wanted an endpoint of type {other}"
    else:
        code, message = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {wanted}"
    if request.version < FIRST_VERSION_WITH_TYPES and code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        code = ErrorCode.INVALID_REQUEST
    request.reply(
        DescribeClusterResponse.new(
            error_code=int(code), error_message=message, cluster_id=request.services.node.cluster_id
        )
    )
    return True


def _reply(request: Request, here: ListenerType, nodes: list[Any], controller: int) -> None:
    response = DescribeClusterResponse.new(
        cluster_id=request.services.node.cluster_id, controller_id=controller, brokers=nodes
    )
    if request.version >= FIRST_VERSION_WITH_TYPES:
        response.endpoint_type = int(here)
    if request.body.include_cluster_authorized_operations:
        response.cluster_authorized_operations = operations_bits(request, Resource.CLUSTER, CLUSTER_NAME)
    request.reply(response)
