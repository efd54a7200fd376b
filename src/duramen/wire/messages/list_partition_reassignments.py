"""ListPartitionReassignments (key 46): reassignments that are under way (KIP-455)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, Array, Field, Struct

ListPartitionReassignmentsTopics = Struct(
    "ListPartitionReassignmentsTopics",
    Field("name", STRING),
    Field("partition_indexes", Array(INT32)),
)

ListPartitionReassignmentsRequest = Message(
    "ListPartitionReassignmentsRequest",
    "0-0",
    0,
    Field("timeout_ms", INT32, default=60000),
    Field("topics", Array(ListPartitionReassignmentsTopics), nullable="0+", default=None),
)

OngoingPartitionReassignment = Struct(
    "OngoingPartitionReassignment",
    Field("partition_index", INT32),
    Field("replicas", Array(INT32)),
    Field("adding_replicas", Array(INT32)),
    Field("removing_replicas", Array(INT32)),
)

OngoingTopicReassignment = Struct(
    "OngoingTopicReassignment",
    Field("name", STRING),
    Field("partitions", Array(OngoingPartitionReassignment)),
)

ListPartitionReassignmentsResponse = Message(
    "ListPartitionReassignmentsResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("topics", Array(OngoingTopicReassignment)),
)
