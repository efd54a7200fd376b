"""AddOffsetsToTxn (key 25): a group's offsets join a transaction (KIP-98)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, STRING, Field

AddOffsetsToTxnRequest = Message(
    "AddOffsetsToTxnRequest",
    "0-4",
    3,
    Field("transactional_id", STRING),
    Field("producer_id", INT64),
    Field("producer_epoch", INT16),
    Field("group_id", STRING),
)

AddOffsetsToTxnResponse = Message(
    "AddOffsetsToTxnResponse",
    "0-4",
    3,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
)
