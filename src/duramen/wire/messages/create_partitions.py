"""CreatePartitions (key 37): add partitions to topics."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, STRING, Array, Field, Struct

CreatePartitionsAssignment = Struct(
    "CreatePartitionsAssignment",
    Field("broker_ids", Array(INT32)),
)

CreatePartitionsTopic = Struct(
    "CreatePartitionsTopic",
    Field("name", STRING),
    Field("count", INT32),
    Field("assignments", Array(CreatePartitionsAssignment), nullable="0+"),
)

CreatePartitionsRequest = Message(
    "CreatePartitionsRequest",
    "0-3",
    2,
    Field("topics", Array(CreatePartitionsTopic)),
    Field("timeout_ms", INT32),
    Field("validate_only", BOOL),
)

CreatePartitionsTopicResult = Struct(
    "CreatePartitionsTopicResult",
    Field("name", STRING),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
)

CreatePartitionsResponse = Message(
    "CreatePartitionsResponse",
    "0-3",
    2,
    Field("throttle_time_ms", INT32),
    Field("results", Array(CreatePartitionsTopicResult)),
)
