"""ConditionalAppend (key 10031, ours): a batch for one partition that is appended under conditions, and closing.

Version 1 says with each end of the log which leader epoch the record in front of it has.
"""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT8, INT16, INT32, INT64, RECORDS, STRING, UUID, Field

ConditionalAppendRequest = Message(
    "ConditionalAppendRequest",
    "0-1",
    0,
    Field("topic_name", STRING),
    Field("topic_id", UUID),
    Field("partition", INT32),
    Field("acks", INT16, default=-1),
    Field("timeout_ms", INT32, default=30000),
    Field("expected_offset", INT64, default=-1),
    Field("expected_epoch", INT32, "1+", default=-1),
    Field("close", BOOL),
    Field("records", RECORDS, nullable="0+"),
    Field("producer_id", INT64, tagged="0+", tag=0, default=-1),
)

ConditionalAppendResponse = Message(
    "ConditionalAppendResponse",
    "0-1",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+", default=None),
    Field("base_offset", INT64, default=-1),
    Field("last_offset", INT64, default=-1),
    Field("log_append_time_ms", INT64, default=-1),
    Field("log_start_offset", INT64, default=-1),
    Field("end_offset", INT64, default=-1),
    Field("leader_epoch", INT32, default=-1),
    Field("duplicate", BOOL),
    Field("durability", INT8),
    Field("copies", INT16),
    Field("expected_sequence", INT32, default=-1),
    Field("writer_epoch", INT16, default=-1),
    Field("closed", BOOL),
    Field("last_txid", INT64, default=-1),
    Field("end_epoch", INT32, "1+", default=-1, ignorable=True),
)
