"""OpenWriter (key 10030, ours): a partition is open for one writer alone from now on, or for nobody."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, UUID, Field

OpenWriterRequest = Message(
    "OpenWriterRequest",
    "0-0",
    0,
    Field("topic_name", STRING),
    Field("topic_id", UUID),
    Field("partition", INT32),
    Field("name", STRING),
    Field("timeout_ms", INT32, default=30000),
    Field("release", BOOL),
    Field("producer_id", INT64, default=-1),
)

OpenWriterResponse = Message(
    "OpenWriterResponse",
    "0-0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("producer_id", INT64, default=-1),
    Field("producer_epoch", INT16, default=-1),
    Field("end_offset", INT64, default=-1),
    Field("last_txid", INT64, default=-1),
    Field("leader_epoch", INT32, default=-1),
)
