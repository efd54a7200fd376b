"""BeginQuorumEpoch (key 53): a new leader tells the voters that it leads (KIP-595)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, UINT16, UUID, Array, Field, Struct

PartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
    Field("voter_directory_id", UUID, "1+", ignorable=True),
    Field("leader_id", INT32),
    Field("leader_epoch", INT32),
)

TopicData = Struct(
    "TopicData",
    Field("topic_name", STRING),
    Field("partitions", Array(PartitionData)),
)

LeaderEndpoint = Struct(
    "LeaderEndpoint",
    Field("name", STRING, "1+"),
    Field("host", STRING, "1+"),
    Field("port", UINT16, "1+"),
)

BeginQuorumEpochRequest = Message(
    "BeginQuorumEpochRequest",
    "0-1",
    1,
    Field("cluster_id", STRING, nullable="0+", default=None),
    Field("voter_id", INT32, "1+", default=-1, ignorable=True),
    Field("topics", Array(TopicData)),
    Field("leader_endpoints", Array(LeaderEndpoint), "1+", ignorable=True),
)

ResponsePartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
    Field("error_code", INT16),
    Field("leader_id", INT32),
    Field("leader_epoch", INT32),
)

ResponseTopicData = Struct(
    "TopicData",
    Field("topic_name", STRING),
    Field("partitions", Array(ResponsePartitionData)),
)

NodeEndpoint = Struct(
    "NodeEndpoint",
    Field("node_id", INT32, "1+"),
    Field("host", STRING, "1+"),
    Field("port", UINT16, "1+"),
)

BeginQuorumEpochResponse = Message(
    "BeginQuorumEpochResponse",
    "0-1",
    1,
    Field("error_code", INT16),
    Field("topics", Array(ResponseTopicData)),
    Field("node_endpoints", Array(NodeEndpoint), "1+", tagged="1+", tag=0),
)
