"""FetchSnapshot (key 59): a part of a metadata snapshot, for who is behind the log's start (KIP-630)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, RECORDS, STRING, UINT16, UUID, Array, Field, Struct

SnapshotId = Struct(
    "SnapshotId",
    Field("end_offset", INT64),
    Field("epoch", INT32),
)

PartitionSnapshot = Struct(
    "PartitionSnapshot",
    Field("partition", INT32),
    Field("current_leader_epoch", INT32),
    Field("snapshot_id", SnapshotId),
    Field("position", INT64),
    Field("replica_directory_id", UUID, "1+", tagged="1+", tag=0, ignorable=True),
)

TopicSnapshot = Struct(
    "TopicSnapshot",
    Field("name", STRING),
    Field("partitions", Array(PartitionSnapshot)),
)

FetchSnapshotRequest = Message(
    "FetchSnapshotRequest",
    "0-1",
    0,
    Field("cluster_id", STRING, nullable="0+", tagged="0+", tag=0, default=None),
    Field("replica_id", INT32, default=-1),
    Field("max_bytes", INT32, default=2147483647),
    Field("topics", Array(TopicSnapshot)),
)

ResponseSnapshotId = Struct(
    "SnapshotId",
    Field("end_offset", INT64),
    Field("epoch", INT32),
)

LeaderIdAndEpoch = Struct(
    "LeaderIdAndEpoch",
    Field("leader_id", INT32),
    Field("leader_epoch", INT32),
)

ResponsePartitionSnapshot = Struct(
    "PartitionSnapshot",
    Field("index", INT32),
    Field("error_code", INT16),
    Field("snapshot_id", ResponseSnapshotId),
    Field("current_leader", LeaderIdAndEpoch, tagged="0+", tag=0),
    Field("size", INT64),
    Field("position", INT64),
    Field("unaligned_records", RECORDS),
)

ResponseTopicSnapshot = Struct(
    "TopicSnapshot",
    Field("name", STRING),
    Field("partitions", Array(ResponsePartitionSnapshot)),
)

NodeEndpoint = Struct(
    "NodeEndpoint",
    Field("node_id", INT32, "1+"),
    Field("host", STRING, "1+"),
    Field("port", UINT16, "1+"),
)

FetchSnapshotResponse = Message(
    "FetchSnapshotResponse",
    "0-1",
    0,
    Field("throttle_time_ms", INT32, ignorable=True),
    Field("error_code", INT16),
    Field("topics", Array(ResponseTopicSnapshot)),
    Field("node_endpoints", Array(NodeEndpoint), "1+", tagged="1+", tag=0),
)
