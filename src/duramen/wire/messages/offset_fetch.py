"""OffsetFetch (key 9): the positions a group has stored; several groups at once since version 8."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, UUID, Array, Field, Struct

OffsetFetchRequestTopic = Struct(
    "OffsetFetchRequestTopic",
    Field("name", STRING),
    Field("partition_indexes", Array(INT32)),
)

OffsetFetchRequestTopics = Struct(
    "OffsetFetchRequestTopics",
    Field("name", STRING, "8-9", ignorable=True),
    Field("topic_id", UUID, "10+", ignorable=True),
    Field("partition_indexes", Array(INT32)),
)

OffsetFetchRequestGroup = Struct(
    "OffsetFetchRequestGroup",
    Field("group_id", STRING),
    Field("member_id", STRING, "9+", nullable="0+", default=None, ignorable=True),
    Field("member_epoch", INT32, "9+", default=-1, ignorable=True),
    Field("topics", Array(OffsetFetchRequestTopics), nullable="0+"),
)

OffsetFetchRequest = Message(
    "OffsetFetchRequest",
    "1-10",
    6,
    Field("group_id", STRING, "1-7"),
    Field("topics", Array(OffsetFetchRequestTopic), "1-7", nullable="2+"),
    Field("groups", Array(OffsetFetchRequestGroup), "8+"),
    Field("require_stable", BOOL, "7+"),
)

OffsetFetchResponsePartition = Struct(
    "OffsetFetchResponsePartition",
    Field("partition_index", INT32),
    Field("committed_offset", INT64),
    Field("committed_leader_epoch", INT32, "5+", default=-1, ignorable=True),
    Field("metadata", STRING, nullable="0+"),
    Field("error_code", INT16),
)

OffsetFetchResponseTopic = Struct(
    "OffsetFetchResponseTopic",
    Field("name", STRING),
    Field("partitions", Array(OffsetFetchResponsePartition)),
)

OffsetFetchResponsePartitions = Struct(
    "OffsetFetchResponsePartitions",
    Field("partition_index", INT32),
    Field("committed_offset", INT64),
    Field("committed_leader_epoch", INT32, default=-1),
    Field("metadata", STRING, nullable="0+"),
    Field("error_code", INT16),
)

OffsetFetchResponseTopics = Struct(
    "OffsetFetchResponseTopics",
    Field("name", STRING, "8-9", ignorable=True),
    Field("topic_id", UUID, "10+", ignorable=True),
    Field("partitions", Array(OffsetFetchResponsePartitions)),
)

OffsetFetchResponseGroup = Struct(
    "OffsetFetchResponseGroup",
    Field("group_id", STRING),
    Field("topics", Array(OffsetFetchResponseTopics)),
    Field("error_code", INT16),
)

OffsetFetchResponse = Message(
    "OffsetFetchResponse",
    "1-10",
    6,
    Field("throttle_time_ms", INT32, "3+", ignorable=True),
    Field("topics", Array(OffsetFetchResponseTopic), "1-7"),
    Field("error_code", INT16, "2-7", ignorable=True),
    Field("groups", Array(OffsetFetchResponseGroup), "8+"),
)
