"""ConsumerGroupDescribe (key 69): epochs, members and assignments of consumer groups (KIP-848)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, STRING, UUID, Array, Field, Struct

ConsumerGroupDescribeRequest = Message(
    "ConsumerGroupDescribeRequest",
    "0-1",
    0,
    Field("group_ids", Array(STRING)),
    Field("include_authorized_operations", BOOL),
)

Assignment = Struct(
    "Assignment",
    Field(
        "topic_partitions",
        Array(
            Struct(
                "TopicPartitions",
                Field("topic_id", UUID),
                Field("topic_name", STRING),
                Field("partitions", Array(INT32)),
            )
        ),
    ),
)

Member = Struct(
    "Member",
    Field("member_id", STRING),
    Field("instance_id", STRING, nullable="0+", default=None),
    Field("rack_id", STRING, nullable="0+", default=None),
    Field("member_epoch", INT32),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("subscribed_topic_names", Array(STRING)),
    Field("subscribed_topic_regex", STRING, nullable="0+", default=None),
    Field("assignment", Assignment),
    Field("target_assignment", Assignment),
    Field("member_type", INT8, "1+", default=-1, ignorable=True),
)

DescribedGroup = Struct(
    "DescribedGroup",
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("group_id", STRING),
    Field("group_state", STRING),
    Field("group_epoch", INT32),
    Field("assignment_epoch", INT32),
    Field("assignor_name", STRING),
    Field("members", Array(Member)),
    Field("authorized_operations", INT32, default=-2147483648),
)

ConsumerGroupDescribeResponse = Message(
    "ConsumerGroupDescribeResponse",
    "0-1",
    0,
    Field("throttle_time_ms", INT32),
    Field("groups", Array(DescribedGroup)),
)
