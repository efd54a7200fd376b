"""SaslAuthenticate (key 36): one message of a SASL mechanism, from the client and back."""

from duramen.wire.schema import Message
from duramen.wire.types import BYTES, INT16, INT64, STRING, Field

SaslAuthenticateRequest = Message(
    "SaslAuthenticateRequest",
    "0-2",
    2,
    Field("auth_bytes", BYTES),
)

SaslAuthenticateResponse = Message(
    "SaslAuthenticateResponse",
    "0-2",
    2,
    Field("error_code", INT16),
    Field("error_message", STRING, nullable="0+"),
    Field("auth_bytes", BYTES),
    Field("session_lifetime_ms", INT64, "1+", ignorable=True),
)
