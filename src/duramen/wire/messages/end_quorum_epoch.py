"""EndQuorumEpoch (key 54): a leader that stops tells the voters to elect another (KIP-595)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, UINT16, UUID, Array, Field, Struct

ReplicaInfo = Struct(
    "ReplicaInfo",
    Field("candidate_id", INT32, "1+"),
    Field("candidate_directory_id", UUID, "1+"),
)

PartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
    Field("leader_id", INT32),
    Field("leader_epoch", INT32),
    Field("preferred_successors", Array(INT32), "0", ignorable=True),
    Field("preferred_candidates", Array(ReplicaInfo), "1+", ignorable=True),
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

EndQuorumEpochRequest = Message(
    "EndQuorumEpochRequest",
    "0-1",
    1,
    Field("cluster_id", STRING, nullable="0+", default=None),
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

EndQuorumEpochResponse = Message(
    "EndQuorumEpochResponse",
    "0-1",
    1,
    Field("error_code", INT16),
    Field("topics", Array(ResponseTopicData)),
    Field("node_endpoints", Array(NodeEndpoint), "1+", tagged="1+", tag=0),
)
