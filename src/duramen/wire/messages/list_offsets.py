"""ListOffsets (key 2): offsets by timestamp, and the special ones (earliest, latest, largest timestamp, tiered)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT8, INT16, INT32, INT64, STRING, Array, Field, Struct

ListOffsetsPartition = Struct(
    "ListOffsetsPartition",
    Field("partition_index", INT32),
    Field("current_leader_epoch", INT32, "4+", default=-1, ignorable=True),
    Field("timestamp", INT64),
)

ListOffsetsTopic = Struct(
    "ListOffsetsTopic",
    Field("name", STRING),
    Field("partitions", Array(ListOffsetsPartition)),
)

ListOffsetsRequest = Message(
    "ListOffsetsRequest",
    "1-11",
    6,
    Field("replica_id", INT32),
    Field("isolation_level", INT8, "2+"),
    Field("topics", Array(ListOffsetsTopic)),
    Field("timeout_ms", INT32, "10+", ignorable=True),
)

ListOffsetsPartitionResponse = Struct(
    "ListOffsetsPartitionResponse",
    Field("partition_index", INT32),
    Field("error_code", INT16),
    Field("timestamp", INT64, default=-1),
    Field("offset", INT64, default=-1),
    Field("leader_epoch", INT32, "4+", default=-1),
)

ListOffsetsTopicResponse = Struct(
    "ListOffsetsTopicResponse",
    Field("name", STRING),
    Field("partitions", Array(ListOffsetsPartitionResponse)),
)

ListOffsetsResponse = Message(
    "ListOffsetsResponse",
    "1-11",
    6,
    Field("throttle_time_ms", INT32, "2+", ignorable=True),
    Field("topics", Array(ListOffsetsTopicResponse)),
)
