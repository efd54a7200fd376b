"""AlterPartitionReassignments (key 45): begin or cancel the move of partitions to other replicas (KIP-455)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, STRING, Array, Field, Struct

ReassignablePartition = Struct(
    "ReassignablePartition",
    Field("partition_index", INT32),
    Field("replicas", Array(INT32), nullable="0+", default=None),
)

ReassignableTopic = Struct(
    "ReassignableTopic",
    Field("name", STRING),
    Field("partitions", Array(ReassignablePartition)),
)

AlterPartitionReassignmentsRequest = Message(
    "AlterPartitionReassignmentsRequest",
    "0-1",
    0,
    Field("timeout_ms", INT32, default=60000),
    Field("allow_replication_factor_change", BOOL, "1+", default=True),
    Field("topics", Array(ReassignableTopic)),
)

ReassignablePartitionResponse = Struct(
    "ReassignablePartitionResponse",
    Field("partition_index", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
)

ReassignableTopicResponse = Struct(
    "ReassignableTopicResponse",
    Field("name", STRING),
    Field("partitions", Array(ReassignablePartitionResponse)),
)

AlterPartitionReassignmentsResponse = Message(
    "AlterPartitionReassignmentsResponse",
    "0-1",
    0,
    Field("throttle_time_ms", INT32),
    Field("allow_replication_factor_change", BOOL, "1+", default=True, ignorable=True),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("responses", Array(ReassignableTopicResponse)),
)
