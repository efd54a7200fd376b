"""Records of consumer groups in `__consumer_offsets` (KIP-848): kinds 3 to 8 and 16, as Kafka 4.3 writes them.

A key's version is the record's kind, and its own layout never changes; values are flexible, so far all of version 0.
"""

from __future__ import annotations

from duramen.wire.schema import Message
from duramen.wire.types import BYTES, INT8, INT32, INT64, STRING, UUID, Array, Field, Struct

GROUP = Field("group", STRING)
MEMBER = Field("member", STRING)

ConsumerGroupMetadataKey = Message("ConsumerGroupMetadataKey", "3-3", None, GROUP)

ConsumerGroupMetadataValue = Message(
    "ConsumerGroupMetadataValue",
    "0-0",
    0,
    Field("epoch", INT32),
    Field("metadata_hash", INT64, tagged="0+", tag=0),
)

ConsumerGroupPartitionMetadataKey = Message("ConsumerGroupPartitionMetadataKey", "4-4", None, GROUP)

ConsumerGroupPartitionMetadataValue = Message(
    "ConsumerGroupPartitionMetadataValue",
    "0-0",
    0,
    Field(
        "topics",
        Array(
            Struct(
                "TopicMetadata",
                Field("topic_id", UUID),
                Field("topic_name", STRING),
                Field("num_partitions", INT32),
                Field(
                    "partition_metadata",
                    Array(Struct("PartitionMetadata", Field("partition", INT32), Field("racks", Array(STRING)))),
                ),
            )
        ),
    ),
)
"""Kafka before 4.1 kept here what the hash in ConsumerGroupMetadataValue stands for now."""

ConsumerGroupMemberMetadataKey = Message("ConsumerGroupMemberMetadataKey", "5-5", None, GROUP, MEMBER)

ClassicMemberMetadata = Struct(
    "ClassicMemberMetadata",
    Field("session_timeout_ms", INT32),
    Field(
        "supported_protocols",
        Array(Struct("ClassicProtocol", Field("name", STRING), Field("metadata", BYTES))),
    ),
)

ConsumerGroupMemberMetadataValue = Message(
    "ConsumerGroupMemberMetadataValue",
    "0-0",
    0,
    Field("instance_id", STRING, nullable="0+", default=None),
    Field("rack_id", STRING, nullable="0+", default=None),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", Array(STRING)),
    Field("subscribed_topic_regex", STRING, nullable="0+", default=None),
    Field("rebalance_timeout_ms", INT32, default=-1),
    Field("server_assignor", STRING, nullable="0+", default=None),
    Field("classic_member_metadata", ClassicMemberMetadata, nullable="0+", tagged="0+", tag=0, default=None),
)

ConsumerGroupTargetAssignmentMetadataKey = Message("ConsumerGroupTargetAssignmentMetadataKey", "6-6", None, GROUP)

ConsumerGroupTargetAssignmentMetadataValue = Message(
    "ConsumerGroupTargetAssignmentMetadataValue",
    "0-0",
    0,
    Field("assignment_epoch", INT32),
    Field("assignment_timestamp", INT64, tagged="0+", tag=0, ignorable=True),
)

ConsumerGroupTargetAssignmentMemberKey = Message("ConsumerGroupTargetAssignmentMemberKey", "7-7", None, GROUP, MEMBER)

ConsumerGroupTargetAssignmentMemberValue = Message(
    "ConsumerGroupTargetAssignmentMemberValue",
    "0-0",
    0,
    Field(
        "topic_partitions",
        Array(Struct("TopicPartition", Field("topic_id", UUID), Field("partitions", Array(INT32)))),
    ),
)

ConsumerGroupCurrentMemberAssignmentKey = Message("ConsumerGroupCurrentMemberAssignmentKey", "8-8", None, GROUP, MEMBER)

TopicPartitions = Struct(
    "TopicPartitions",
    Field("topic_id", UUID),
    Field("partitions", Array(INT32)),
    Field("assignment_epochs", Array(INT32), nullable="0+", tagged="0+", tag=0, default=None),
)

ConsumerGroupCurrentMemberAssignmentValue = Message(
    "ConsumerGroupCurrentMemberAssignmentValue",
    "0-0",
    0,
    Field("member_epoch", INT32),
    Field("previous_member_epoch", INT32),
    Field("state", INT8),
    Field("assigned_partitions", Array(TopicPartitions)),
    Field("partitions_pending_revocation", Array(TopicPartitions)),
)

ConsumerGroupRegularExpressionKey = Message(
    "ConsumerGroupRegularExpressionKey", "16-16", None, GROUP, Field("regular_expression", STRING)
)

ConsumerGroupRegularExpressionValue = Message(
    "ConsumerGroupRegularExpressionValue",
    "0-0",
    0,
    Field("topics", Array(STRING)),
    Field("version", INT64),
    Field("timestamp", INT64),
)

MESSAGES = {
    3: (ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    4: (ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    5: (ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    6: (ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    7: (ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    8: (ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    16: (ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
}
"""(key, value) by kind."""
