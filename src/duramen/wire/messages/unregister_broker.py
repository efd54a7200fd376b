"""UnregisterBroker (key 64): a broker is gone for good (KIP-631)."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, INT32, STRING, Field

UnregisterBrokerRequest = Message(
    "UnregisterBrokerRequest",
    "0",
    0,
    Field("broker_id", INT32),
)

UnregisterBrokerResponse = Message(
    "UnregisterBrokerResponse",
    "0",
    0,
    Field("throttle_time_ms", INT32),
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
)
