"""Envelope (key 58): a broker hands a client's request on to the active controller (KIP-590)."""

from duramen.wire.schema import Message
from duramen.wire.types import BYTES, INT16, INT64, Field

EnvelopeRequest = Message(
    "EnvelopeRequest",
    "0",
    0,
    Field("request_data", BYTES),
    Field("request_principal", BYTES, nullable="0+"),
    Field("client_host_address", BYTES),
)

EnvelopeResponse = Message(
    "EnvelopeResponse",
    "0",
    0,
    Field("response_data", BYTES, nullable="0+", default=None),
    Field("error_code", INT16),
    Field("metadata_offset", INT64, "0+", tagged="0+", tag=10_000, default=-1),
)
"""Ours, which Kafka does not have and skips: metadata_offset, behind everything that the answer speaks of."""
