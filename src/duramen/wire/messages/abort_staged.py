"""AbortStaged (key 10004, ours): staged records that will not be committed are let go."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, Array, Field

AbortStagedRequest = Message(
    "AbortStagedRequest",
    "0-0",
    0,
    Field("sink_id", STRING),
    Field("epoch", INT32),
    Field("batch_id", INT64),
    Field("handles", Array(INT64), nullable="0+", default=None),
)

AbortStagedResponse = Message(
    "AbortStagedResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("already_committed", BOOL),
    Field("released", INT32),
)
