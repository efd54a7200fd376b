"""DescribeTopicPartitions (key 75): topics with their partitions, page by page (KIP-966)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, STRING, UUID, Array, Field, Struct

TopicRequest = Struct(
    "TopicRequest",
    Field("name", STRING),
)

Cursor = Struct(
    "Cursor",
    Field("topic_name", STRING),
    Field("partition_index", INT32),
)

DescribeTopicPartitionsRequest = Message(
    "DescribeTopicPartitionsRequest",
    "0-0",
    0,
    Field("topics", Array(TopicRequest)),
    Field("response_partition_limit", INT32, default=2000),
    Field("cursor", Cursor, nullable="0+", default=None),
)

DescribeTopicPartitionsResponsePartition = Struct(
    "DescribeTopicPartitionsResponsePartition",
    Field("error_code", INT16),
    Field("partition_index", INT32),
    Field("leader_id", INT32),
    Field("leader_epoch", INT32, default=-1),
    Field("replica_nodes", Array(INT32)),
    Field("isr_nodes", Array(INT32)),
    Field("eligible_leader_replicas", Array(INT32), nullable="0+", default=None),
    Field("last_known_elr", Array(INT32), nullable="0+", default=None),
    Field("offline_replicas", Array(INT32)),
)

DescribeTopicPartitionsResponseTopic = Struct(
    "DescribeTopicPartitionsResponseTopic",
    Field("error_code", INT16),
    Field("name", STRING, nullable="0+"),
    Field("topic_id", UUID),
    Field("is_internal", BOOL),
    Field("partitions", Array(DescribeTopicPartitionsResponsePartition)),
    Field("topic_authorized_operations", INT32, default=-2147483648),
)

DescribeTopicPartitionsResponse = Message(
    "DescribeTopicPartitionsResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("topics", Array(DescribeTopicPartitionsResponseTopic)),
    Field("next_cursor", Cursor, nullable="0+", default=None),
)
