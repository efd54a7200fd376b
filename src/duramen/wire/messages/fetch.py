"""Fetch (key 1): consumers and followers read record batches, in full or within a fetch session (KIP-227)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT8, INT16, INT32, INT64, RECORDS, STRING, UUID, Array, Field, Struct

ReplicaState = Struct(
    "ReplicaState",
    Field("replica_id", INT32, default=-1),
    Field("replica_epoch", INT64, default=-1),
)

FetchPartition = Struct(
    "FetchPartition",
    Field("partition", INT32),
    Field("current_leader_epoch", INT32, "9+", default=-1, ignorable=True),
    Field("fetch_offset", INT64),
    Field("last_fetched_epoch", INT32, "12+", default=-1),
    Field("log_start_offset", INT64, "5+", default=-1, ignorable=True),
    Field("partition_max_bytes", INT32),
    Field("replica_directory_id", UUID, "17+", tagged="0+", tag=0, ignorable=True),
    Field("high_watermark", INT64, "18+", tagged="0+", tag=1, default=9223372036854775807, ignorable=True),
)

FetchTopic = Struct(
    "FetchTopic",
    Field("topic", STRING, "4-12", ignorable=True),
    Field("topic_id", UUID, "13+", ignorable=True),
    Field("partitions", Array(FetchPartition)),
)

ForgottenTopic = Struct(
    "ForgottenTopic",
    Field("topic", STRING, "7-12", ignorable=True),
    Field("topic_id", UUID, "13+", ignorable=True),
    Field("partitions", Array(INT32)),
)

FetchRequest = Message(
    "FetchRequest",
    "4-18",
    12,
    Field("cluster_id", STRING, "12+", nullable="0+", tagged="0+", tag=0, default=None, ignorable=True),
    Field("replica_id", INT32, "4-14", default=-1),
    Field("replica_state", ReplicaState, "15+", tagged="0+", tag=1),
    Field("max_wait_ms", INT32),
    Field("min_bytes", INT32),
    Field("max_bytes", INT32, default=2147483647),
    Field("isolation_level", INT8),
    Field("session_id", INT32, "7+", ignorable=True),
    Field("session_epoch", INT32, "7+", default=-1, ignorable=True),
    Field("topics", Array(FetchTopic)),
    Field("forgotten_topics_data", Array(ForgottenTopic), "7+"),
    Field("rack_id", STRING, "11+", ignorable=True),
)

EpochEndOffset = Struct(
    "EpochEndOffset",
    Field("epoch", INT32, default=-1),
    Field("end_offset", INT64, default=-1),
)

LeaderIdAndEpoch = Struct(
    "LeaderIdAndEpoch",
    Field("leader_id", INT32, default=-1),
    Field("leader_epoch", INT32, default=-1),
)

SnapshotId = Struct(
    "SnapshotId",
    Field("end_offset", INT64, default=-1),
    Field("epoch", INT32, default=-1),
)

AbortedTransaction = Struct(
    "AbortedTransaction",
    Field("producer_id", INT64),
    Field("first_offset", INT64),
)

PartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
    Field("error_code", INT16),
    Field("high_watermark", INT64),
    Field("last_stable_offset", INT64, default=-1),
    Field("log_start_offset", INT64, "5+", default=-1, ignorable=True),
    Field("diverging_epoch", EpochEndOffset, "12+", tagged="0+", tag=0),
    Field("current_leader", LeaderIdAndEpoch, "12+", tagged="0+", tag=1),
    Field("snapshot_id", SnapshotId, "12+", tagged="0+", tag=2),
    Field("aborted_transactions", Array(AbortedTransaction), nullable="0+"),
    Field("preferred_read_replica", INT32, "11+", default=-1),
    Field("records", RECORDS, nullable="0+"),
)

FetchableTopicResponse = Struct(
    "FetchableTopicResponse",
    Field("topic", STRING, "4-12", ignorable=True),
    Field("topic_id", UUID, "13+", ignorable=True),
    Field("partitions", Array(PartitionData)),
)

NodeEndpoint = Struct(
    "NodeEndpoint",
    Field("node_id", INT32),
    Field("host", STRING),
    Field("port", INT32),
    Field("rack", STRING, nullable="0+", default=None),
)

FetchResponse = Message(
    "FetchResponse",
    "4-18",
    12,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16, "7+", ignorable=True),
    Field("session_id", INT32, "7+"),
    Field("responses", Array(FetchableTopicResponse)),
    Field("node_endpoints", Array(NodeEndpoint), "16+", tagged="0+", tag=0),
)
