"""AlterReplicaLogDirs (key 34): move replicas between the log directories of a broker (KIP-113)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, Array, Field, Struct

AlterReplicaLogDirTopic = Struct(
    "AlterReplicaLogDirTopic",
    Field("name", STRING),
    Field("partitions", Array(INT32)),
)

AlterReplicaLogDir = Struct(
    "AlterReplicaLogDir",
    Field("path", STRING),
    Field("topics", Array(AlterReplicaLogDirTopic)),
)

AlterReplicaLogDirsRequest = Message(
    "AlterReplicaLogDirsRequest",
    "1-2",
    2,
    Field("dirs", Array(AlterReplicaLogDir)),
)

AlterReplicaLogDirPartitionResult = Struct(
    "AlterReplicaLogDirPartitionResult",
    Field("partition_index", INT32),
    Field("error_code", INT16),
)

AlterReplicaLogDirTopicResult = Struct(
    "AlterReplicaLogDirTopicResult",
    Field("topic_name", STRING),
    Field("partitions", Array(AlterReplicaLogDirPartitionResult)),
)

AlterReplicaLogDirsResponse = Message(
    "AlterReplicaLogDirsResponse",
    "1-2",
    2,
    Field("throttle_time_ms", INT32),
    Field("results", Array(AlterReplicaLogDirTopicResult)),
)
