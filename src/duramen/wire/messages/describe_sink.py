"""DescribeSink (key 10003, ours): who owns a sink, its last committed batch, and what of it is still under way."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, BYTES, INT8, INT16, INT32, INT64, STRING, Array, Field, Struct

DescribeSinkRequest = Message(
    "DescribeSinkRequest",
    "0-0",
    0,
    Field("sink_id", STRING),
)

SinkBatch = Struct(
    "SinkBatch",
    Field("batch_id", INT64),
    Field("epoch", INT32),
    Field("committed_ms", INT64),
    Field("state", INT8),
    Field("records", INT64),
    Field("bytes", INT64),
)

DescribeSinkResponse = Message(
    "DescribeSinkResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("epoch", INT32, default=-1),
    Field("run_id", STRING),
    Field("ephemeral", BOOL),
    Field("producer_id", INT64, default=-1),
    Field("last_batch_id", INT64, default=-1),
    Field("last_metadata", BYTES, nullable="0+", default=None),
    Field("batches", Array(SinkBatch)),
    Field("staged_handles", INT32),
    Field("staged_bytes", INT64),
)
