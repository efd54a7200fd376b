"""JoinGroup (key 11): a member enters a classic group's rebalance (KIP-62, KIP-345, KIP-394, KIP-814)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, BYTES, INT16, INT32, STRING, Array, Field, Struct

JoinGroupRequestProtocol = Struct(
    "JoinGroupRequestProtocol",
    Field("name", STRING),
    Field("metadata", BYTES),
)

JoinGroupRequest = Message(
    "JoinGroupRequest",
    "0-9",
    6,
    Field("group_id", STRING),
    Field("session_timeout_ms", INT32),
    Field("rebalance_timeout_ms", INT32, "1+", default=-1, ignorable=True),
    Field("member_id", STRING),
    Field("group_instance_id", STRING, "5+", nullable="0+", default=None),
    Field("protocol_type", STRING),
    Field("protocols", Array(JoinGroupRequestProtocol)),
    Field("reason", STRING, "8+", nullable="0+", default=None, ignorable=True),
)

JoinGroupResponseMember = Struct(
    "JoinGroupResponseMember",
    Field("member_id", STRING),
    Field("group_instance_id", STRING, "5+", nullable="0+", default=None, ignorable=True),
    Field("metadata", BYTES),
)

JoinGroupResponse = Message(
    "JoinGroupResponse",
    "0-9",
    6,
    Field("throttle_time_ms", INT32, "2+", ignorable=True),
    Field("error_code", INT16),
    Field("generation_id", INT32, default=-1),
    Field("protocol_type", STRING, "7+", nullable="0+", default=None, ignorable=True),
    Field("protocol_name", STRING, nullable="7+"),
    Field("leader", STRING),
    Field("skip_assignment", BOOL, "9+"),
    Field("member_id", STRING),
    Field("members", Array(JoinGroupResponseMember)),
)
