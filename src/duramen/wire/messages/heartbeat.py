"""Heartbeat (key 12): a classic group's member shows that it is alive."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, Field

HeartbeatRequest = Message(
    "HeartbeatRequest",
    "0-4",
    4,
    Field("group_id", STRING),
    Field("generation_id", INT32),
    Field("member_id", STRING),
    Field("group_instance_id", STRING, "3+", nullable="0+", default=None),
)

HeartbeatResponse = Message(
    "HeartbeatResponse",
    "0-4",
    4,
    Field("throttle_time_ms", INT32, "1+", ignorable=True),
    Field("error_code", INT16),
)
