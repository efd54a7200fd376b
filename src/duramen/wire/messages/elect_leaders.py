"""ElectLeaders (key 43): ask for preferred or unclean leader elections."""

from duramen.wire.schema import Message
from duramen.wire.types import INT8, INT16, INT32, STRING, Array, Field, Struct

TopicPartitions = Struct(
    "TopicPartitions",
    Field("topic", STRING),
    Field("partitions", Array(INT32)),
)

ElectLeadersRequest = Message(
    "ElectLeadersRequest",
    "0-2",
    2,
    Field("election_type", INT8, "1+"),
    Field("topic_partitions", Array(TopicPartitions), nullable="0+"),
    Field("timeout_ms", INT32, default=60000),
)

PartitionResult = Struct(
    "PartitionResult",
    Field("partition_id", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
)

ReplicaElectionResult = Struct(
    "ReplicaElectionResult",
    Field("topic", STRING),
    Field("partition_result", Array(PartitionResult)),
)

ElectLeadersResponse = Message(
    "ElectLeadersResponse",
    "0-2",
    2,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16, "1+"),
    Field("replica_election_results", Array(ReplicaElectionResult)),
)
