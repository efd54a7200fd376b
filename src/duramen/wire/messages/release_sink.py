"""ReleaseSink (key 10005, ours): a sink that will not be used again is forgotten."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, Field

ReleaseSinkRequest = Message(
    "ReleaseSinkRequest",
    "0-0",
    0,
    Field("sink_id", STRING),
    Field("epoch", INT32),
)

ReleaseSinkResponse = Message(
    "ReleaseSinkResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
)
