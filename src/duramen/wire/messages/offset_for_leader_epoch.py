"""OffsetForLeaderEpoch (key 23): where a leader epoch ends, for truncation and its detection (KIP-101, KIP-320)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, STRING, Array, Field, Struct

OffsetForLeaderPartition = Struct(
    "OffsetForLeaderPartition",
    Field("partition", INT32),
    Field("current_leader_epoch", INT32, default=-1),
    Field("leader_epoch", INT32),
)

OffsetForLeaderTopic = Struct(
    "OffsetForLeaderTopic",
    Field("topic", STRING),
    Field("partitions", Array(OffsetForLeaderPartition)),
)

OffsetForLeaderEpochRequest = Message(
    "OffsetForLeaderEpochRequest",
    "2-4",
    4,
    Field("replica_id", INT32, "3+", default=-2, ignorable=True),
    Field("topics", Array(OffsetForLeaderTopic)),
)

EpochEndOffset = Struct(
    "EpochEndOffset",
    Field("error_code", INT16),
    Field("partition", INT32),
    Field("leader_epoch", INT32, default=-1),
    Field("end_offset", INT64, default=-1),
)

OffsetForLeaderTopicResult = Struct(
    "OffsetForLeaderTopicResult",
    Field("topic", STRING),
    Field("partitions", Array(EpochEndOffset)),
)

OffsetForLeaderEpochResponse = Message(
    "OffsetForLeaderEpochResponse",
    "2-4",
    4,
    Field("throttle_time_ms", INT32),
    Field("topics", Array(OffsetForLeaderTopicResult)),
)
