"""DescribeCluster: the cluster's id, controller and brokers (KIP-700, KIP-919). Versions 0-2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import ErrorCode
from duramen.server.api.authorizer import Resource
from duramen.server.handlers.metadata import operations_bits
from duramen.wire.messages.describe_cluster import DescribeClusterResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

BROKERS = 1


def handle(request: Request) -> None:
    """Describe the brokers; the controllers' endpoints are told on a controller's listener only."""
    services = request.services
    if request.version >= 1 and request.body.endpoint_type != BROKERS:
        known = request.body.endpoint_type == 2
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        request.reply(
            DescribeClusterResponse.new(
                error_code=int(code),
                error_message="this listener serves brokers",
                cluster_id=services.node.cluster_id,
                endpoint_type=request.body.endpoint_type,
            )
        )
        return
    response = DescribeClusterResponse.new(
        cluster_id=services.node.cluster_id,
        controller_id=services.node.id,
        brokers=[
            DescribeClusterResponse.DescribeClusterBroker(broker_id=node, host=host, port=port, rack=rack)
            for node, host, port, rack in services.endpoints(request.connection.listener)
        ],
    )
    if request.body.include_cluster_authorized_operations:
        response.cluster_authorized_operations = operations_bits(request, Resource.CLUSTER, "kafka-cluster")
    request.reply(response)
