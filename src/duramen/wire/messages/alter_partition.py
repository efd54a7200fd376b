"""AlterPartition (key 56): a partition's leader asks for other in-sync replicas (KIP-497, KIP-903)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT8, INT16, INT32, INT64, UUID, Array, Field, Struct

BrokerState = Struct(
    "BrokerState",
    Field("broker_id", INT32, "3+"),
    Field("broker_epoch", INT64, "3+", default=-1),
)

PartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
    Field("leader_epoch", INT32),
    Field("new_isr", Array(INT32), "0-2"),
    Field("new_isr_with_epochs", Array(BrokerState), "3+"),
    Field("leader_recovery_state", INT8, "1+"),
    Field("partition_epoch", INT32),
)

TopicData = Struct(
    "TopicData",
    Field("topic_id", UUID, "2+", ignorable=True),
    Field("partitions", Array(PartitionData)),
)

AlterPartitionRequest = Message(
    "AlterPartitionRequest",
    "2-3",
    0,
    Field("broker_id", INT32),
    Field("broker_epoch", INT64, default=-1),
    Field("topics", Array(TopicData)),
)

ResponsePartitionData = Struct(
    "PartitionData",
    Field("partition_index", INT32),
    Field("error_code", INT16),
    Field("leader_id", INT32),
    Field("leader_epoch", INT32),
    Field("isr", Array(INT32)),
    Field("leader_recovery_state", INT8, "1+", ignorable=True),
    Field("partition_epoch", INT32),
)

ResponseTopicData = Struct(
    "TopicData",
    Field("topic_id", UUID, "2+", ignorable=True),
    Field("partitions", Array(ResponsePartitionData)),
)

AlterPartitionResponse = Message(
    "AlterPartitionResponse",
    "2-3",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("topics", Array(ResponseTopicData)),
)
