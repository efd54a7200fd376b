"""CommitStaged (key 10002, ours): what was staged for a batch of a sink becomes part of its topics, once."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, BYTES, INT8, INT16, INT32, INT64, STRING, UUID, Array, Field, Struct

CommitStagedRequest = Message(
    "CommitStagedRequest",
    "0-0",
    0,
    Field("sink_id", STRING),
    Field("epoch", INT32),
    Field("batch_id", INT64),
    Field("handles", Array(INT64)),
    Field("metadata", BYTES, nullable="0+", default=None),
    Field("timeout_ms", INT32),
)

CommittedPartition = Struct(
    "CommittedPartition",
    Field("index", INT32),
    Field("records", INT64),
    Field("base_offset", INT64, default=-1),
    Field("last_offset", INT64, default=-1),
    Field("dropped", BOOL),
)

CommittedTopic = Struct(
    "CommittedTopic",
    Field("name", STRING),
    Field("topic_id", UUID),
    Field("partitions", Array(CommittedPartition)),
)

CommitStagedResponse = Message(
    "CommitStagedResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("state", INT8),
    Field("already_committed", BOOL),
    Field("topics", Array(CommittedTopic)),
)
