"""AllocateProducerIds (key 67): a broker takes a block of producer ids (KIP-730)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, INT64, Field

AllocateProducerIdsRequest = Message(
    "AllocateProducerIdsRequest",
    "0",
    0,
    Field("broker_id", INT32),
    Field("broker_epoch", INT64, default=-1),
)

AllocateProducerIdsResponse = Message(
    "AllocateProducerIdsResponse",
    "0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("producer_id_start", INT64),
    Field("producer_id_len", INT32),
)
