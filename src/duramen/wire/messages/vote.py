"""Vote (key 52): a candidate asks a voter for its vote, or whether it would vote (KIP-595, KIP-996)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, UINT16, UUID, Array, Field, Struct

PartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
    Field("replica_epoch", INT32),
    Field("replica_id", INT32),
    Field("replica_directory_id", UUID, "1+", ignorable=True),
    Field("voter_directory_id", UUID, "1+", ignorable=True),
    Field("last_offset_epoch", INT32),
    Field("last_offset", INT64),
    Field("pre_vote", BOOL, "2+"),
)

TopicData = Struct(
    "TopicData",
    Field("topic_name", STRING),
    Field("partitions", Array(PartitionData)),
)

VoteRequest = Message(
    "VoteRequest",
    "0-2",
    0,
    Field("cluster_id", STRING, nullable="0+", default=None),
    Field("voter_id", INT32, "1+", default=-1, ignorable=True),
    Field("topics", Array(TopicData)),
)

ResponsePartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
    Field("error_code", INT16),
    Field("leader_id", INT32),
    Field("leader_epoch", INT32),
    Field("vote_granted", BOOL),
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

VoteResponse = Message(
    "VoteResponse",
    "0-2",
    0,
    Field("error_code", INT16),
    Field("topics", Array(ResponseTopicData)),
    Field("node_endpoints", Array(NodeEndpoint), "1+", tagged="1+", tag=0),
)
