"""SaslHandshake (key 17): which SASL mechanism a client is about to authenticate with."""

from duramen.wire.schema import Message
from duramen.wire.types import INT16, STRING, Array, Field

SaslHandshakeRequest = Message(
    "SaslHandshakeRequest",
    "0-1",
    None,
    Field("mechanism", STRING),
)

SaslHandshakeResponse = Message(
    "SaslHandshakeResponse",
    "0-1",
    None,
    Field("error_code", INT16),
    Field("mechanisms", Array(STRING)),
)
