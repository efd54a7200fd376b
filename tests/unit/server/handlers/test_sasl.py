"""SaslHandshake and SaslAuthenticate at a listener without SASL: Kafka's answer, which clients know."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import InProcess

from duramen.errors import ErrorCode


def test_both_apis_are_advertised() -> None:
    apis = {api.api_key: (api.min_version, api.max_version) for api in InProcess().connect().call(18, 3).api_keys}
    assert (apis[17], apis[36]) == ((0, 1), (0, 2))


@pytest.mark.parametrize("version", [0, 1])
def test_a_handshake_is_answered_and_the_connection_goes_on(version: int) -> None:
    """It was closed, and Java suspected a firewall."""
    client = InProcess().connect()
    reply = client.call(17, version, mechanism="PLAIN")
    assert (reply.error_code, reply.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    assert client.call(18, 0).error_code == 0


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_authentication_is_refused_in_the_same_way(version: int) -> None:
    reply = InProcess().connect().call(36, version, auth_bytes=b"\0user\0secret")
    assert (reply.error_code, bytes(reply.auth_bytes)) == (ErrorCode.ILLEGAL_SASL_STATE, b"")
    assert "security.protocol=PLAINTEXT" in reply.error_message
