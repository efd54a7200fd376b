"""OffsetCommit (key 8): a group's members store the positions they have reached."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, STRING, UUID, Array, Field, Struct

OffsetCommitRequestPartition = Struct(
    "OffsetCommitRequestPartition",
    Field("partition_index", INT32),
    Field("committed_offset", INT64),
    Field("committed_leader_epoch", INT32, "6+", default=-1, ignorable=True),
    Field("committed_metadata", STRING, nullable="0+"),
)

OffsetCommitRequestTopic = Struct(
    "OffsetCommitRequestTopic",
    Field("name", STRING, "2-9", ignorable=True),
    Field("topic_id", UUID, "10+", ignorable=True),
    Field("partitions", Array(OffsetCommitRequestPartition)),
)

OffsetCommitRequest = Message(
    "OffsetCommitRequest",
    "2-10",
    8,
    Field("group_id", STRING),
    Field("generation_id_or_member_epoch", INT32, default=-1),
    Field("member_id", STRING),
    Field("group_instance_id", STRING, "7+", nullable="0+", default=None),
    Field("retention_time_ms", INT64, "2-4", default=-1, ignorable=True),
    Field("topics", Array(OffsetCommitRequestTopic)),
)

OffsetCommitResponsePartition = Struct(
    "OffsetCommitResponsePartition",
    Field("partition_index", INT32),
    Field("error_code", INT16),
)

OffsetCommitResponseTopic = Struct(
    "OffsetCommitResponseTopic",
    Field("name", STRING, "2-9", ignorable=True),
    Field("topic_id", UUID, "10+", ignorable=True),
    Field("partitions", Array(OffsetCommitResponsePartition)),
)

OffsetCommitResponse = Message(
    "OffsetCommitResponse",
    "2-10",
    8,
    Field("throttle_time_ms", INT32, "3+", ignorable=True),
    Field("topics", Array(OffsetCommitResponseTopic)),
)
