"""AssignReplicasToDirs (key 73): a broker says in which log directories its replicas are (KIP-858)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, UUID, Array, Field, Struct

PartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
)

TopicData = Struct(
    "TopicData",
    Field("topic_id", UUID),
    Field("partitions", Array(PartitionData)),
)

DirectoryData = Struct(
    "DirectoryData",
    Field("id", UUID),
    Field("topics", Array(TopicData)),
)

AssignReplicasToDirsRequest = Message(
    "AssignReplicasToDirsRequest",
    "0",
    0,
    Field("broker_id", INT32),
    Field("broker_epoch", INT64, default=-1),
    Field("directories", Array(DirectoryData)),
)

ResponsePartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
    Field("error_code", INT16),
)

ResponseTopicData = Struct(
    "TopicData",
    Field("topic_id", UUID),
    Field("partitions", Array(ResponsePartitionData)),
)

ResponseDirectoryData = Struct(
    "DirectoryData",
    Field("id", UUID),
    Field("topics", Array(ResponseTopicData)),
)

AssignReplicasToDirsResponse = Message(
    "AssignReplicasToDirsResponse",
    "0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("directories", Array(ResponseDirectoryData)),
)
