"""TxnOffsetCommit (key 28): positions of a group that count when a producer's transaction commits (KIP-98, KIP-447)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, STRING, Array, Field, Struct

TxnOffsetCommitRequestPartition = Struct(
    "TxnOffsetCommitRequestPartition",
    Field("partition_index", INT32),
    Field("committed_offset", INT64),
    Field("committed_leader_epoch", INT32, "2+", default=-1, ignorable=True),
    Field("committed_metadata", STRING, nullable="0+"),
)

TxnOffsetCommitRequestTopic = Struct(
    "TxnOffsetCommitRequestTopic",
    Field("name", STRING),
    Field("partitions", Array(TxnOffsetCommitRequestPartition)),
)

TxnOffsetCommitRequest = Message(
    "TxnOffsetCommitRequest",
    "0-5",
    3,
    Field("transactional_id", STRING),
    Field("group_id", STRING),
    Field("producer_id", INT64),
    Field("producer_epoch", INT16),
    Field("generation_id", INT32, "3+", default=-1),
    Field("member_id", STRING, "3+"),
    Field("group_instance_id", STRING, "3+", nullable="3+", default=None),
    Field("topics", Array(TxnOffsetCommitRequestTopic)),
)

TxnOffsetCommitResponsePartition = Struct(
    "TxnOffsetCommitResponsePartition",
    Field("partition_index", INT32),
    Field("error_code", INT16),
)

TxnOffsetCommitResponseTopic = Struct(
    "TxnOffsetCommitResponseTopic",
    Field("name", STRING),
    Field("partitions", Array(TxnOffsetCommitResponsePartition)),
)

TxnOffsetCommitResponse = Message(
    "TxnOffsetCommitResponse",
    "0-5",
    3,
    Field("throttle_time_ms", INT32),
    Field("topics", Array(TxnOffsetCommitResponseTopic)),
)
