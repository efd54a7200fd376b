"""SyncGroup (key 14): the leader of a classic group hands out assignments and members fetch theirs."""

from duramen.wire.schema import Message
from duramen.wire.types import BYTES, INT16, INT32, STRING, Array, Field, Struct

SyncGroupRequestAssignment = Struct(
    "SyncGroupRequestAssignment",
    Field("member_id", STRING),
    Field("assignment", BYTES),
)

SyncGroupRequest = Message(
    "SyncGroupRequest",
    "0-5",
    4,
    Field("group_id", STRING),
    Field("generation_id", INT32),
    Field("member_id", STRING),
    Field("group_instance_id", STRING, "3+", nullable="0+", default=None),
    Field("protocol_type", STRING, "5+", nullable="0+", default=None, ignorable=True),
    Field("protocol_name", STRING, "5+", nullable="0+", default=None, ignorable=True),
    Field("assignments", Array(SyncGroupRequestAssignment)),
)

SyncGroupResponse = Message(
    "SyncGroupResponse",
    "0-5",
    4,
    Field("throttle_time_ms", INT32, "1+", ignorable=True),
    Field("error_code", INT16),
    Field("protocol_type", STRING, "5+", nullable="0+", default=None, ignorable=True),
    Field("protocol_name", STRING, "5+", nullable="0+", default=None, ignorable=True),
    Field("assignment", BYTES),
)
