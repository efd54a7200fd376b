"""OffsetDelete (key 47): delete a group's offsets for chosen partitions (KIP-496)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, Array, Field, Struct

OffsetDeleteRequestPartition = Struct(
    "OffsetDeleteRequestPartition",
    Field("partition_index", INT32),
)

OffsetDeleteRequestTopic = Struct(
    "OffsetDeleteRequestTopic",
    Field("name", STRING),
    Field("partitions", Array(OffsetDeleteRequestPartition)),
)

OffsetDeleteRequest = Message(
    "OffsetDeleteRequest",
    "0-0",
    None,
    Field("group_id", STRING),
    Field("topics", Array(OffsetDeleteRequestTopic)),
)

OffsetDeleteResponsePartition = Struct(
    "OffsetDeleteResponsePartition",
    Field("partition_index", INT32),
    Field("error_code", INT16),
)

OffsetDeleteResponseTopic = Struct(
    "OffsetDeleteResponseTopic",
    Field("name", STRING),
    Field("partitions", Array(OffsetDeleteResponsePartition)),
)

OffsetDeleteResponse = Message(
    "OffsetDeleteResponse",
    "0-0",
    None,
    Field("error_code", INT16),
    Field("throttle_time_ms", INT32),
    Field("topics", Array(OffsetDeleteResponseTopic)),
)
