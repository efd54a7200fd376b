"""DescribeCluster (key 60): cluster id, controller and brokers."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, STRING, Array, Field, Struct

DescribeClusterRequest = Message(
    "DescribeClusterRequest",
    "0-2",
    0,
    Field("include_cluster_authorized_operations", BOOL),
    Field("endpoint_type", INT8, "1+", default=1),
    Field("include_fenced_brokers", BOOL, "2+"),
)

DescribeClusterBroker = Struct(
    "DescribeClusterBroker",
    Field("broker_id", INT32),
    Field("host", STRING),
    Field("port", INT32),
    Field("rack", STRING, nullable="0+", default=None),
    Field("is_fenced", BOOL, "2+"),
)

DescribeClusterResponse = Message(
    "DescribeClusterResponse",
    "0-2",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("endpoint_type", INT8, "1+", default=1),
    Field("cluster_id", STRING),
    Field("controller_id", INT32, default=-1),
    Field("brokers", Array(DescribeClusterBroker)),
    Field("cluster_authorized_operations", INT32, default=-2147483648),
)
