"""DescribeGroups (key 15): state and members of classic groups."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, BYTES, INT16, INT32, STRING, Array, Field, Struct

DescribeGroupsRequest = Message(
    "DescribeGroupsRequest",
    "0-6",
    5,
    Field("groups", Array(STRING)),
    Field("include_authorized_operations", BOOL, "3+"),
)

DescribedGroupMember = Struct(
    "DescribedGroupMember",
    Field("member_id", STRING),
    Field("group_instance_id", STRING, "4+", nullable="0+", default=None, ignorable=True),
    Field("client_id", STRING),
    Field("client_host", STRING),
    Field("member_metadata", BYTES),
    Field("member_assignment", BYTES),
)

DescribedGroup = Struct(
    "DescribedGroup",
    Field("error_code", INT16),
    Field("error_message", STRING, "6+", nullable="0+", default=None),
    Field("group_id", STRING),
    Field("group_state", STRING),
    Field("protocol_type", STRING),
    Field("protocol_data", STRING),
    Field("members", Array(DescribedGroupMember)),
    Field("authorized_operations", INT32, "3+", default=-2147483648),
)

DescribeGroupsResponse = Message(
    "DescribeGroupsResponse",
    "0-6",
    5,
    Field("throttle_time_ms", INT32, "1+", ignorable=True),
    Field("groups", Array(DescribedGroup)),
)
