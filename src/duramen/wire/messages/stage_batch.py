"""StageBatch (key 10001, ours): record batches are stored for a sink's batch, durable and visible to nobody."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, RECORDS, STRING, UUID, Array, Field, Struct

StagePartition = Struct(
    "StagePartition",
    Field("index", INT32),
    Field("records", RECORDS, nullable="0+"),
)

StageTopic = Struct(
    "StageTopic",
    Field("name", STRING),
    Field("topic_id", UUID),
    Field("partitions", Array(StagePartition)),
)

StageBatchRequest = Message(
    "StageBatchRequest",
    "0-0",
    0,
    Field("sink_id", STRING),
    Field("epoch", INT32),
    Field("batch_id", INT64),
    Field("task", STRING),
    Field("timeout_ms", INT32),
    Field("topics", Array(StageTopic)),
)

StagedPartition = Struct(
    "StagedPartition",
    Field("index", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("handle", INT64, default=-1),
    Field("records", INT64),
    Field("bytes", INT64),
)

StagedTopic = Struct(
    "StagedTopic",
    Field("name", STRING),
    Field("topic_id", UUID),
    Field("partitions", Array(StagedPartition)),
)

StageBatchResponse = Message(
    "StageBatchResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("already_committed", BOOL),
    Field("topics", Array(StagedTopic)),
)
