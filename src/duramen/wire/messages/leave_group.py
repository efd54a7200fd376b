"""LeaveGroup (key 13): members leave a classic group; several at once since version 3 (KIP-345)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, Array, Field, Struct

MemberIdentity = Struct(
    "MemberIdentity",
    Field("member_id", STRING),
    Field("group_instance_id", STRING, nullable="0+", default=None),
    Field("reason", STRING, "5+", nullable="0+", default=None, ignorable=True),
)

LeaveGroupRequest = Message(
    "LeaveGroupRequest",
    "0-5",
    4,
    Field("group_id", STRING),
    Field("member_id", STRING, "0-2"),
    Field("members", Array(MemberIdentity), "3+"),
)

MemberResponse = Struct(
    "MemberResponse",
    Field("member_id", STRING),
    Field("group_instance_id", STRING, nullable="0+"),
    Field("error_code", INT16),
)

LeaveGroupResponse = Message(
    "LeaveGroupResponse",
    "0-5",
    4,
    Field("throttle_time_ms", INT32, "1+", ignorable=True),
    Field("error_code", INT16),
    Field("members", Array(MemberResponse), "3+"),
)
