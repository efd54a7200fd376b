"""ClaimSinkEpoch (key 10000, ours): one run of a program becomes the only one that may write as a sink."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, Field

ClaimSinkEpochRequest = Message(
    "ClaimSinkEpochRequest",
    "0-0",
    0,
    Field("sink_id", STRING),
    Field("run_id", STRING),
    Field("ephemeral", BOOL),
)

ClaimSinkEpochResponse = Message(
    "ClaimSinkEpochResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("epoch", INT32, default=-1),
    Field("last_batch_id", INT64, default=-1),
    Field("max_staged_bytes", INT32),
)
