"""SaslHandshake 0-1 and SaslAuthenticate 0-2: on a listener without SASL both are out of place.

Kafka has the two also where it has no SASL listener, and answers ILLEGAL_SASL_STATE on a plaintext one. Clients know
that answer and end with words about SASL; one that misses the APIs takes the connection for one that a firewall cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import ErrorCode
from duramen.wire.messages.sasl_authenticate import SaslAuthenticateResponse
from duramen.wire.messages.sasl_handshake import SaslHandshakeResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

TOLD = "This listener is PLAINTEXT: there is nothing to log in to; set security.protocol=PLAINTEXT."


def handle_handshake(request: Request) -> None:
    """No mechanism is enabled here."""
    request.reply(SaslHandshakeResponse.new(error_code=int(ErrorCode.ILLEGAL_SASL_STATE), mechanisms=[]))


def handle_authenticate(request: Request) -> None:
    """What the client sent is not looked at, and kept nowhere."""
    error = int(ErrorCode.ILLEGAL_SASL_STATE)
    request.reply(SaslAuthenticateResponse.new(error_code=error, error_message=TOLD, auth_bytes=b""))
