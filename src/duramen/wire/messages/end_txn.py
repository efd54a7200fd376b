"""EndTxn (key 26): a transaction is committed or aborted (KIP-98)."""

from duramen.wire.schema import Message
from duramen.wire.types import BOOL, INT16, INT32, INT64, STRING, Field

EndTxnRequest = Message(
    "EndTxnRequest",
    "0-5",
    3,
    Field("transactional_id", STRING),
    Field("producer_id", INT64),
    Field("producer_epoch", INT16),
    Field("committed", BOOL),
)

EndTxnResponse = Message(
    "EndTxnResponse",
    "0-5",
    3,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("producer_id", INT64, "5+", default=-1, ignorable=True),
    Field("producer_epoch", INT16, "5+", default=-1, ignorable=True),
)
