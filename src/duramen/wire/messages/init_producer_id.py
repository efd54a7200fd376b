"""InitProducerId (key 22): a producer obtains its id and epoch."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, STRING, Field

InitProducerIdRequest = Message(
    "InitProducerIdRequest",
    "0-5",
    2,
    Field("transactional_id", STRING, nullable="0+"),
    Field("transaction_timeout_ms", INT32),
    Field("producer_id", INT64, "3+", default=-1),
    Field("producer_epoch", INT16, "3+", default=-1),
)

InitProducerIdResponse = Message(
    "InitProducerIdResponse",
    "0-5",
    2,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("producer_id", INT64, default=-1),
    Field("producer_epoch", INT16),
)
