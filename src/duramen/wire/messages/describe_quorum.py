"""DescribeQuorum (key 55): leader, voters and observers of the metadata quorum (KIP-595)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, STRING, UINT16, UUID, Array, Field, Struct

PartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
)

TopicData = Struct(
    "TopicData",
    Field("topic_name", STRING),
    Field("partitions", Array(PartitionData)),
)

DescribeQuorumRequest = Message(
    "DescribeQuorumRequest",
    "0-2",
    0,
    Field("topics", Array(TopicData)),
)

ReplicaState = Struct(
    "ReplicaState",
    Field("replica_id", INT32),
    Field("replica_directory_id", UUID, "2+"),
    Field("log_end_offset", INT64),
    Field("last_fetch_timestamp", INT64, "1+", default=-1, ignorable=True),
    Field("last_caught_up_timestamp", INT64, "1+", default=-1, ignorable=True),
)

ResponsePartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, "2+", nullable="0+", ignorable=True),
    Field("leader_id", INT32),
    Field("leader_epoch", INT32),
    Field("high_watermark", INT64),
    Field("current_voters", Array(ReplicaState)),
    Field("observers", Array(ReplicaState)),
)

ResponseTopicData = Struct(
    "TopicData",
    Field("topic_name", STRING),
    Field("partitions", Array(ResponsePartitionData)),
)

Listener = Struct(
    "Listener",
    Field("name", STRING),
    Field("host", STRING),
    Field("port", UINT16),
)

Node = Struct(
    "Node",
    Field("node_id", INT32),
    Field("listeners", Array(Listener)),
)

DescribeQuorumResponse = Message(
    "DescribeQuorumResponse",
    "0-2",
    0,
    Field("error_code", INT16),
    Field("error_message", STRING, "2+", nullable="0+", ignorable=True),
    Field("topics", Array(ResponseTopicData)),
    Field("nodes", Array(Node), "2+"),
)
